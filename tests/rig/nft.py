"""The nft table that leads connections to the ports of Volute's minds to the guard."""

from __future__ import annotations

import subprocess

FIRST, LAST = 4100, 4199
TABLE = f"""
table inet hostguard
delete table inet hostguard
table inet hostguard {{
    chain output {{
        type nat hook output priority -101; policy accept;
        oifname != "lo" return
        meta mark 0x4847 return
        tcp flags & (fin | syn | rst | ack) != syn return
        tcp dport {{ {FIRST}-{LAST} }} redirect to :4301
    }}
}}
"""


def load(table: str = TABLE) -> None:
    """Replace the rules at once."""
    subprocess.run(["nft", "-f", "-"], input=table, text=True, check=True)


def unload() -> None:
    """Lead nothing any more, if something was led."""
    subprocess.run(["nft", "delete", "table", "inet", "hostguard"], capture_output=True, check=False)
