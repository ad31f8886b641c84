"""Sites of a Causeway run: one model, trained at several places, by trainers of any kind.

`causeway.Site` trains numpy arrays; `causeway.torch.join` makes a site of a PyTorch model and its
optimizer; `causeway.transformers` and `causeway.lightning` are callbacks for those trainers. The
coordinator owns the schedule, the codecs and the budget. Log lines go to the logger "causeway".
"""

import typing

from causeway.errors import (
    Aborted,
    Cancelled,
    DataLoss,
    Error,
    InvalidArgument,
    NotAuthorized,
    NotFinite,
    Refused,
    ResourceExhausted,
    Unavailable,
)

if typing.TYPE_CHECKING:
    from causeway._arrays import Site
    from causeway._arrays import describe_run as describe
    from causeway._session import Info
    from causeway._site import BaseSite

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "BaseSite",
    "Cancelled",
    "DataLoss",
    "Error",
    "Info",
    "InvalidArgument",
    "NotAuthorized",
    "NotFinite",
    "Refused",
    "ResourceExhausted",
    "Site",
    "Unavailable",
    "describe",
]


def __getattr__(name: str) -> typing.Any:
    """Sites, as they are asked for: what plans and shows runs does without numpy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from causeway import _arrays, _session, _site
    globals().update(Site=_arrays.Site, describe=_arrays.describe_run, Info=_session.Info, BaseSite=_site.BaseSite)
    return globals()[name]
