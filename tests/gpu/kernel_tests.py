"""The unit tests of worker/backend/cuda on a real GPU, alone and under compute-sanitizer."""

import concurrent.futures
import json
import re

from parts import Failed, Skip

_PROGRAMS = 4  # At a time, here and under the sanitizer: most of their time is the host's.
_TEST_S = 70
# Seconds of one program under one tool. Its tests are small, but every access is looked at.
_SANITIZER_S = 90
# By tool: all kernels, or our own alone. The libraries' are not ours to mend, and racecheck takes
# minutes for one of them. Every kernel of ours has the namespace in its name.
_TOOLS = {"memcheck": (), "racecheck": ("--kernel-name", "kns=causeway")}
# Its kernels are cuDNN's.
_NOT_SANITIZED = ("cudnn_test_gpu",)


def test_programs(context):
    return json.loads((context.pack / "manifest.json").read_text())["tests"]


def _loaded_tests(context, program):
    """Names of the tests of a program, which needs no GPU for that."""
    done = context.run("unit", context.program(program), "--gtest_list_tests", timeout_s=30,
                       variables=context.program_variables)
    if done.status != 0:
        raise Failed(f"{program} does not start: {done.last_lines()}")
    return [line for line in done.output.splitlines() if line.startswith("  ")]


def several(jobs, function):
    """Yields (job, what the function makes of it) as they are done, a few at a time."""
    with concurrent.futures.ThreadPoolExecutor(_PROGRAMS) as pool:
        begun = {pool.submit(function, job): job for job in jobs}
        for done in concurrent.futures.as_completed(begun):
            yield begun[done], done.result()


def unit(context):
    programs = test_programs(context)
    if context.gpu is None:
        count = sum(len(_loaded_tests(context, program)) for program in programs)
        raise Skip(f"no GPU: {context.no_gpu}; {count} tests in {len(programs)} programs load")
    rows = context.data["programs"] = {}
    for program, row in several(programs, lambda program: _run_tests(context, program)):
        rows[program] = row
        context.tell(f"{program}: {row['said']}")
    wrong = [f"{program}: {rows[program]['said']}" for program in programs
             if not rows[program]["passed"]]
    if wrong:
        raise Failed("; ".join(wrong))
    return f"{sum(row['tests'] for row in rows.values())} tests in {len(programs)} programs"


def _run_tests(context, program):
    """What the report has of a test program; `said` in words."""
    if context.left() < 1:
        return {"passed": False, "said": "not begun: no time was left"}
    report = context.out / f"{program}.json"
    done = context.run("unit", context.program(program), f"--gtest_output=json:{report}",
                       timeout_s=_TEST_S, variables=context.program_variables)
    row = {"seconds": round(done.seconds, 2), "status": done.status, "passed": done.status == 0}
    if report.exists():
        row.update(read_report(json.loads(report.read_text())))
        report.unlink()
    if done.timed_out:
        row["said"] = f"not done after {done.seconds:.0f} s, in {last_test(done.output)}"
    elif done.status != 0:
        row["said"] = ", ".join(row.get("failed", [])) or done.last_lines()
    elif "tests" not in row:
        row.update(passed=False, said="it left no report")
    else:
        row["said"] = f"{row['tests']} tests, {done.seconds:.1f} s"
    return row


def last_test(output):
    """The test that a program had begun last."""
    begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
    return begun[-1] if begun else "no test yet"


def read_report(report):
    """Counts and names of GoogleTest's JSON."""
    cases = [(f"{suite['name']}.{case['name']}", case)
             for suite in report.get("testsuites", []) for case in suite.get("testsuite", [])]
    run = [(name, case) for name, case in cases if case.get("result") == "COMPLETED"]
    return {"tests": len(run), "skipped": len(cases) - len(run),
            "failed": [name for name, case in run if case.get("failures")]}


def findings(text):
    """How many errors compute-sanitizer counted, or None if it did not come to its end."""
    counts = re.findall(r"ERROR SUMMARY: (\d+) error", text)
    counts += re.findall(r"RACECHECK SUMMARY: (\d+) hazard", text)
    return sum(int(count) for count in counts) if counts else None


def sanitizer(context):
    context.need_gpu()
    tool = context.tools["compute_sanitizer"]
    if tool is None:
        raise Skip("there is no compute-sanitizer")
    rows = context.data["runs"] = []

    def one(job):
        name, program = job
        if context.left() < 5:
            return {"tool": name, "program": program, "findings": None, "why": "no time was left"}
        done = context.run(
            "sanitizer", tool["path"], "--tool", name, *_TOOLS[name], "--report-api-errors", "no",
            "--error-exitcode", "99", context.program(program), timeout_s=_SANITIZER_S,
            variables=context.program_variables)
        row = {"tool": name, "program": program, "findings": findings(done.output),
               "seconds": round(done.seconds, 1), "status": done.status}
        if done.timed_out:
            row.update(findings=None, why=f"not done after {done.seconds:.0f} s")
        elif row["findings"] is None:
            row["why"] = done.last_lines()
        return row

    jobs = [(name, program) for name in _TOOLS for program in test_programs(context)
            if program not in _NOT_SANITIZED]
    for (name, program), row in several(jobs, one):
        rows.append(row)
        said = row.get("why") or f"{row['findings']} findings, {row['seconds']} s"
        context.tell(f"{name} of {program}: {said}")
    rows.sort(key=lambda row: jobs.index((row["tool"], row["program"])))
    found = [row for row in rows if row["findings"]]
    if found:
        raise Failed("; ".join(f"{row['tool']} of {row['program']}: {row['findings']} findings"
                               for row in found))
    complete = [row for row in rows if row["findings"] == 0]
    broken = [row for row in complete if row["status"] != 0]
    if broken:
        raise Failed("; ".join(f"{row['program']} fails under {row['tool']}" for row in broken))
    if not complete:
        raise Failed(f"no program came to its end: {rows[0]['why']}")
    unfinished = [f"{row['program']} under {row['tool']} ({row['why']})"
                  for row in rows if row["findings"] is None]
    reason = f"{len(complete)} of {len(jobs)} runs without a finding"
    if unfinished:
        reason += f"; not finished: {', '.join(unfinished)}"
    return reason
