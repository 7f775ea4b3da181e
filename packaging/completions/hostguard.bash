# Completion of hostguard for bash. The command itself knows it, through click; names of minds, turns and rows
# come from the running daemon. It uses bash-completion, with which "@" begins no word of its own.
_hostguard() {
    local cur words cword kind value
    _get_comp_words_by_ref -n ':=' cur words cword || return
    while IFS=, read -r kind value; do
        case $kind in
            plain) COMPREPLY+=("$(printf '%q' "$value")") ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
        esac
    done < <(COMP_WORDS="${words[*]}" COMP_CWORD=$cword _HOSTGUARD_COMPLETE=bash_complete "$1" 2>/dev/null)
    __ltrim_colon_completions "$cur"
}
complete -o nosort -F _hostguard hostguard
