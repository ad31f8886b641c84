"""Links and schedules on paper: which settings suit given links, and what a run would do over them.

`python3 -m causeway.plan --help`; docs/links.md describes it.
"""

from causeway.plan._planner import CODEC_BITS, NEED_FEEDBACK, NoLink, Plan, Request, make_plan, needed_rate  # noqa: F401
from causeway.plan._setting import Outages, Setting, SettingError, Site  # noqa: F401
from causeway.plan._star import Result, simulate  # noqa: F401
