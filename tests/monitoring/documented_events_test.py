"""Events: docs/events.md, the list in common/telemetry/event_names.cc and the code say the same."""

import re
import unittest

import documents

CALL = re.compile(r"""\bRecord\(\s*"([a-z_]+)",""")
FIELD = re.compile(r"""\{"([a-z_]+)",""")


def arguments(text, begin):
    """The text of a call from its opening parenthesis to the closing one."""
    depth = 0
    quoted = False
    i = begin
    while True:
        character = text[i]
        if quoted and character == "\\":
            i += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted and character == "(":
            depth += 1
        elif not quoted and character == ")":
            depth -= 1
            if depth == 0:
                return text[begin:i + 1]
        i += 1


def calls(*folders):
    """(name, fields, where) of every call of Record with a literal name below the folders."""
    for folder in folders:
        for path in sorted((documents.ROOT / folder).rglob("*.cc")):
            text = path.read_text()
            for match in CALL.finditer(text):
                call = arguments(text, text.index("(", match.start()))
                line = text[:match.start()].count("\n") + 1
                where = f"{path.relative_to(documents.ROOT)}:{line}"
                yield match.group(1), set(FIELD.findall(call)), where


def listed(array):
    text = (documents.ROOT / "common" / "telemetry" / "event_names.cc").read_text()
    body = re.search(array + r"\[\] = \{(.*?)\n\};", text, re.DOTALL).group(1)
    return {name: level.lower() for name, level in re.findall(r'\{"(\w+)", k(\w+)\}', body)}


class DocumentedEventsTest(unittest.TestCase):
    maxDiff = None

    def compare(self, side, array, *folders):
        documented = documents.events(side)
        self.assertEqual({name: level for name, (level, _) in documented.items()}, listed(array))
        recorded = {}
        for name, fields, where in calls(*folders):
            self.assertIn(name, documented, f"{where} records an event that is not documented")
            # `stopping` comes with one field or the other.
            self.assertLessEqual(fields, documented[name][1], where)
            recorded.setdefault(name, set()).update(fields)
        self.assertEqual(recorded, {name: fields for name, (_, fields) in documented.items()})

    def test_the_coordinators(self):
        self.compare("coordinator", "kCoordinatorEvents", "server")

    def test_the_workers(self):
        self.compare("worker", "kWorkerEvents", "worker", "common/client")


if __name__ == "__main__":
    unittest.main()
