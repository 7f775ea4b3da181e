"""The incident, as it is without a guard: whatever Volute's daemon delivers runs at once."""

from __future__ import annotations

from guard import wait_for
from guarded import LONG_S
from volute_daemon import VoluteDaemon


def test_three_schedules_and_a_message_to_all_run_at_once(volute: VoluteDaemon) -> None:
    names = list(volute.minds)
    hold = volute.ran.until_released()
    for name in names:
        volute.schedule(name, f"each-{name}", bash=volute.ran.command(f"schedule-{name}", also=hold))
    volute.minute()
    mentioned = " ".join(f"@{name}" for name in names)  # else a mind waits 20 s for more
    volute.chat("#system", mentioned, bash=volute.ran.command("channel", also=hold))
    wait_for(lambda: len(volute.ran.runs()) == 2 * len(names), LONG_S)
    assert not [run for run in volute.ran.runs() if run.ended]
    volute.ran.release()
    wait_for(lambda: all(run.ended for run in volute.ran.runs()), LONG_S)
    cgroups = {cgroup for run in volute.ran.runs() for cgroup in run.cgroups}
    assert cgroups == {"/system.slice/volute.service"}
