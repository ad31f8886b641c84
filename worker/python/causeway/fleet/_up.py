"""Brings a fleet up, and keeps it so until its run has ended."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Callable, Container, Dict, Iterable, Optional

from causeway.demo import units
from causeway.fleet._file import COORDINATOR, Fleet
from causeway.fleet._machines import SETS_UP, Machine, Machines, first_line
from causeway.fleet._run import Run, RunError, make_operator, remember_address

LOOK_EVERY_S = 30.0
PATIENCE_S = 3600.0
_SAY_EVERY_S = 60.0
_MOST_FAILURES = 5  # In a row, without training between them.
_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 600.0
_SILENT_S = 1800.0  # So long a place may be up, and no member of the run,
_SETTING_UP_S = 7200.0  # and so long where it is still being set up.
_DOWN_PAUSES_S = (0.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LAST_S = 60.0  # Between the end of the last site, and the coordinator's knowing of it.


@dataclass
class _Watched:
    """A machine that is to be there."""

    name: str
    task: Callable[[], Any]  # Made anew for every start.
    keeps: bool = False  # What is on it must not be lost: it is never taken down.
    work: Optional[Future] = None  # What is done to it now.
    doing: str = ""
    seen: bool = False  # It has been there.
    started: bool = False  # By this process; its end has not been told yet.
    over: str = ""  # Why it is not started again.
    failures: int = 0
    not_before_s: float = 0.0
    heard_s: float = 0.0  # When it was last a member of the run, or had no reason to be,
    set_up_s: float = 0.0  # and when it was last being set up.


class Up:
    """`clock` has monotonic() and sleep(seconds), as the module time; say() takes lines for people."""

    def __init__(self, fleet: Fleet, run: Run, machines: Machines, clock: Any, say: Callable[[str], None],
                 look_every_s: float = LOOK_EVERY_S, patience_s: float = PATIENCE_S):
        self._fleet = fleet
        self._run = run
        self._machines = machines
        self._clock = clock
        self._say = say
        self._look_every_s = look_every_s
        self._patience_s = patience_s
        self._own = _Watched(COORDINATOR, machines.coordinator_task, keeps=True)
        self._sites = [_Watched(site.name, lambda site=site: machines.task(site, run.invite(site.name)),
                                heard_s=clock.monotonic())
                       for site in fleet.sites]
        self._budget_told = False
        self._had_members = False
        self._all_over_s = float("inf")
        self._troubles: Dict[str, str] = {}
        self._next_line_s = clock.monotonic()

    def to_the_end(self) -> bool:
        """Whether the model is there. RunError: the coordinator refuses; ends nothing."""
        self._machines.tasks()  # Says what is wrong with any before one is started.
        if self._fleet.own is not None:
            self._bring_coordinator()
        last = self._run.status()  # Says at once what is wrong with who we are.
        heard_s = self._clock.monotonic()
        while True:
            status = self._status()
            if status is not None:
                last, heard_s, self._own.failures = status, self._clock.monotonic(), 0
            elif self._clock.monotonic() - heard_s > self._patience_s:
                self._say(f"the coordinator has not answered for {units.duration(self._patience_s)}; then it had "
                          f"{units.count(last['tokens'])} of {units.count(self._fleet.budget_tokens)} tokens. If "
                          "its run has ended, the model is where it ran. Machines go on, and cost: `down` ends them")
                return False
            if status is not None and self._has_ended(status):
                return self._finish(status)
            over = status is not None and status["tokens"] >= self._fleet.budget_tokens
            if self._clock.monotonic() - self._all_over_s > _LAST_S:
                if over:
                    return self._finish(status)
                self._say("no site is left, and the run has not ended: `up` starts them again")
                return False
            machines = {} if over else self._look()
            if status is None:  # Nobody can be in the run.
                for watched in self._sites:
                    watched.heard_s = self._clock.monotonic()
            if status is None and machines is not None and self._fleet.own is not None:
                self._tend_coordinator(machines)
            if status is not None and machines is not None:
                self._budget_told = self._budget_told or bool(self._try(
                    "the budget", lambda: self._run.end_at(self._fleet.budget_tokens)))
                active = {worker["worker_id"] for worker in status["workers"]
                          if worker["state"] in ("JOINING", "ACTIVE")}
                self._had_members |= bool(active)
                for watched in [] if over else self._sites:
                    self._tend(watched, machines.get(watched.name), watched.name in active)
                self._show(status, active)
                nobody = all(watched.over and watched.work is None for watched in self._sites)
                # Past the budget nobody is started, and who does not hear of it is taken down.
                if nobody or over and (not active or self._troubles["the budget"]):
                    self._all_over_s = min(self._all_over_s, self._clock.monotonic())
                else:
                    self._all_over_s = float("inf")
            self._clock.sleep(self._look_every_s)

    def _has_ended(self, status: Dict[str, Any]) -> bool:
        """Not where all were drained before this `up`, which goes on then."""
        return status["finished"] and (
            self._had_members or self._all_over_s < float("inf")
            or status["tokens"] >= self._fleet.budget_tokens
            or status["run_step"] >= status["config"]["train"]["steps"])

    def _try(self, about: str, ask: Callable[[], Any]) -> Any:
        """What it returns; None where it fails. Says so when that is new, and when it is over."""
        came, trouble = None, ""
        try:
            came = ask()
        except Exception as error:  # Whoever is asked may be back soon.
            trouble = first_line(error)
        if trouble != self._troubles.get(about, ""):
            self._say(f"{about}: {trouble}; tries again" if trouble else f"{about}: goes on")
        self._troubles[about] = trouble
        return came

    def _status(self) -> Optional[Dict[str, Any]]:
        return self._try("the coordinator", self._run.status)

    def _look(self) -> Optional[Dict[str, Machine]]:
        return self._try("SkyPilot", self._machines.look)

    def _bring_coordinator(self) -> None:
        """Returns when it answers."""
        machines = self._machines.look()
        self._own.seen = bool(machines)
        if not machines:
            make_operator(self._fleet)
        while True:
            found = self._look()
            if found is not None and self._tend_coordinator(found) and self._status() is not None:
                return
            self._clock.sleep(self._look_every_s)

    def _tend_coordinator(self, found: Dict[str, Machine]) -> bool:
        """Of one that does not answer: whether it may now, where its address is. RunError: it is lost."""
        own, machine = self._own, found.get(COORDINATOR)
        if machine is None and own.seen and own.work is None:
            raise RunError("the machine of the coordinator is gone, and the run with it: `down` ends the "
                           f"sites ({', '.join(sorted(found)) or 'none is left'})")
        self._tend(own, machine, is_member=False)
        if own.over:
            raise RunError(f"the coordinator: {own.over}")
        if own.work is not None or machine is None or machine.job != "RUNNING":
            return False
        address = self._try("the coordinator's address", self._machines.address)
        if address is not None:
            remember_address(self._fleet, address)
        return address is not None

    # --- One machine -----------------------------------------------------------------------------------
    def _start(self, watched: _Watched, why: str) -> None:
        try:
            task = watched.task()
        except Exception as error:
            self._failed(watched, f"cannot be started: {first_line(error)}")
            return
        self._say(f"{watched.name}: {why}")
        watched.doing = "start"
        watched.work = self._machines.start(lambda: self._machines.launch(watched.name, task))

    def _take_down(self, watched: _Watched, why: str) -> None:
        self._say(f"{watched.name}: {why}; takes its machine down")

        def work() -> None:
            for failure in self._machines.down([watched.name]).values():
                raise RuntimeError(failure)
        watched.doing = "end"
        watched.work = self._machines.start(work)

    def _failed(self, watched: _Watched, what: str) -> None:
        watched.failures += 1
        if watched.failures >= _MOST_FAILURES:
            watched.over = f"{what}; it has failed {watched.failures} times, and is given up"
            self._say(f"{watched.name}: {watched.over}")
            return
        pause_s = min(_FIRST_PAUSE_S * 2 ** (watched.failures - 1), _LONGEST_PAUSE_S)
        watched.not_before_s = self._clock.monotonic() + pause_s
        self._say(f"{watched.name}: {what}; tries again in {units.duration(pause_s)}")

    def _tend(self, watched: _Watched, machine: Optional[Machine], is_member: bool) -> None:
        now_s = self._clock.monotonic()
        if watched.work is not None:
            if not watched.work.done():
                return
            error = watched.work.exception()
            watched.work = None
            watched.heard_s = now_s
            if error is not None:
                self._failed(watched, f"SkyPilot cannot {watched.doing} its machine: {first_line(error)}")
                return
            watched.started = watched.doing == "start"
            watched.seen = True
            return  # What was seen of it is old.
        if is_member:
            watched.failures = 0
        if is_member or watched.keeps or machine is None or machine.state != "up":
            watched.heard_s = now_s
        if watched.over or now_s < watched.not_before_s:
            return
        if machine is None:
            self._start(watched, "its machine is gone; starts another" if watched.seen else "starts")
        elif machine.works:
            watched.seen = True
            silent_s, most_s = now_s - max(watched.heard_s, watched.set_up_s), _SILENT_S
            if machine.job in SETS_UP:
                watched.set_up_s = now_s
                silent_s, most_s = now_s - watched.heard_s, _SETTING_UP_S
            if silent_s > most_s:
                self._take_down(watched, f"is not in the run since {units.duration(most_s)} "
                                f"({machine.job.lower()})")
                self._failed(watched, "was not in the run")
        elif machine.state == "broken" and not watched.keeps:
            self._take_down(watched, "its machine is broken or stopped")
        elif machine.job == "SUCCEEDED" and not watched.keeps:
            watched.over = "has left the run"
            self._take_down(watched, "has trained to its end, or was drained")
        elif machine.job and watched.started:
            watched.started = False
            self._failed(watched, f"its program has ended ({machine.job}), and `sky logs "
                         f"{self._fleet.cluster(watched.name)}` has its words while the machine is up")
        else:
            self._start(watched, "starts on the machine that is there")

    # --- The whole -------------------------------------------------------------------------------------
    def _show(self, status: Dict[str, Any], active: set) -> None:
        now_s = self._clock.monotonic()
        if now_s < self._next_line_s:
            return
        self._next_line_s = now_s + _SAY_EVERY_S
        rate = sum(worker["tokens_per_second"] or 0 for worker in status["workers"]
                   if worker["worker_id"] in active)
        names = {watched.name for watched in self._sites}
        self._say(f"{units.count(status['tokens'])} of {units.count(self._fleet.budget_tokens)} tokens, "
                  f"{units.count(rate)} tokens/s, {len(active & names)} of {len(names)} sites train")

    def _finish(self, status: Dict[str, Any]) -> bool:
        self._say(f"the run has ended with {units.count(status['tokens'])} tokens")
        done = True
        try:
            self._say(self._run.export(self._fleet.model))
            self._fleet.state("fetched").write_text(str(self._fleet.model))
        except Exception as error:
            done = False
            self._say(f"the model is not fetched: {first_line(error)}")
        keep = [] if done else [COORDINATOR]
        return take_down(
            self._fleet, self._run, self._machines, self._clock, self._say, keep,
            lambda: {watched.name for watched in self._sites
                     if watched.work and watched.doing == "start" and not watched.work.done()}) and done


def take_down(fleet: Fleet, run: Run, machines: Machines, clock: Any, say: Callable[[str], None],
              keep: Container[str] = (), starting: Callable[[], Iterable[str]] = tuple) -> bool:
    """Ends what was started of the fleet, but those to keep. Whether all is gone.

    starting() names those that this process starts now, of which SkyPilot may not know yet."""
    run.revoke([site.name for site in fleet.sites])
    left = dict.fromkeys([*(site.name for site in fleet.sites), *([COORDINATOR] if fleet.own else [])], "")
    trouble = ""
    for pause_s in _DOWN_PAUSES_S:
        clock.sleep(pause_s)
        started = {name: "is being started" for name in starting()}  # Before the look, which has all others.
        known, trouble = trouble, ""
        try:
            left = {name: left.get(name, "") for name in {**machines.look(refresh=False), **started}}
        except Exception as error:
            trouble = f"SkyPilot does not say what is there: {first_line(error)}"
            if trouble != known:
                say(f"{trouble}; ends what it knows of")
        names = sorted((name for name in left if name not in keep), key=lambda name: (name == COORDINATOR, name))
        failed = {**machines.down(names), **started}
        for name in names:
            if failed.get(name) != left[name]:
                say(f"{name}: {failed[name]}; tries again" if name in failed else f"{name}: down")
        left = failed
        if not left and not trouble:
            return True
    for name, failure in left.items():
        say(f"{name}: is not down, and may cost: {failure} ({fleet.cluster(name)})")
    if trouble:
        say(f"{trouble}: machines of {fleet.prefix}* that are there cost")
    say("`sky status` shows them, and `down` tries again")
    return False

