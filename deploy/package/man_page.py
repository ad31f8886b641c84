"""Makes a manual page of what a program prints with --help.

usage: man_page.py PROGRAM VERSION PAGE.1.gz

The page's name is that of the file. The first line of the help that is a sentence says what the
program is for; the whole text follows as it stands, so that there is one place to write it.
"""

import gzip
import pathlib
import subprocess
import sys

PURPOSE = {
    "causeway-coordinator": "merges what the sites of a Causeway run send, and publishes the result",
    "causeway-worker": "trains at one site of a Causeway run",
    "causewayctl": "shows a Causeway run and steers it",
    "causeway-make-certificates": "makes certificates and tokens for a Causeway run",
}


def roff(text):
    """Text as roff takes it: nothing in it is a request."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").split("\n")
    return "\n".join("\\&" + line if line.startswith((".", "\\(aq")) else line for line in lines)


def page(name, version, help_text):
    return f""".TH {name.upper()} 1 "" "Causeway {version}" "User Commands"
.SH NAME
{name} \\- {roff(PURPOSE[name])}
.SH DESCRIPTION
.nf
{roff(help_text.strip())}
.fi
.SH SEE ALSO
The pages in /usr/share/doc/causewayctl (package causewayctl); docs/operating.md is the first to read.
"""


def main(arguments):
    if len(arguments) != 3:
        sys.exit(__doc__)
    program, version, target = arguments
    help_text = subprocess.run([program, "--help"], check=True, capture_output=True, text=True,
                               stdin=subprocess.DEVNULL, timeout=60).stdout
    name = pathlib.Path(target).name.removesuffix(".1.gz")
    # No time and no name in the archive: the same text gives the same bytes.
    with open(target, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as archive:
        archive.write(page(name, version, help_text).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
