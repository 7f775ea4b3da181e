# Completion of hostguard for fish. The command itself knows it, through click; names of minds, turns and rows come
# from the running daemon.
function __hostguard_complete
    set -l answer (env _HOSTGUARD_COMPLETE=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) \
        hostguard 2>/dev/null)
    for line in $answer
        set -l item (string split -m 1 , -- $line)
        switch $item[1]
            case dir
                __fish_complete_directories $item[2]
            case file
                __fish_complete_path $item[2]
            case plain
                echo $item[2]
        end
    end
end
complete --no-files --command hostguard --arguments '(__hostguard_complete)'
