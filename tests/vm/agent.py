#!/usr/bin/python3
"""Runs in the virtual machine and does what the host asks over a virtio port, several things at a time.

A request is a line of JSON, so is its answer, which bears the request's "id". What is asked:
  {"do": "sh", "command": TEXT, "timeout": S}      {"code": N, "out": stdout and stderr}
  {"do": "api", "method", "path", "body", "timeout": S}    {"status": N, "body": TEXT}: hostguard's API
  {"do": "stall", "on": BOOL}                      mask the card controller's interrupt, or unmask it
  {"do": "nothing"}                                wake up
  {"do": "wake", "now": S, "boot": UUID, "entropy": HEX}   what a machine made from a saved state must get anew
Whatever goes wrong is answered by {"error": TEXT}.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

Told = dict[str, Any]

PORT = "/dev/virtio-ports/agent"
API = "/run/hostguard/hostguard.sock"
SD_HOST = "0x080501"  # PCI class: SD host controller with DMA
INTX_DISABLE = 0x400  # bit of the PCI command register
RNDRESEEDCRNG = 0x5207  # include/uapi/linux/random.h
BOOT_ID = "/proc/sys/kernel/random/boot_id"
MS_BIND = 4096


class Api(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(API)


def sh(command: str, timeout: float) -> Told:
    process = subprocess.Popen(
        ["/bin/bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # not waited for: it may hang on the card
        raise
    return {"code": process.returncode, "out": out.decode(errors="replace")}


def api(method: str, path: str, body: Any, timeout: float) -> Told:
    connection = Api("hostguard", timeout=timeout)
    try:
        raw = None if body is None else json.dumps(body).encode()
        connection.request(method, path, raw, {"Content-Type": "application/json"} if raw else {})
        answer = connection.getresponse()
        return {"status": answer.status, "body": answer.read().decode()}
    finally:
        connection.close()


def stall(on: bool) -> Told:
    """One write of 16 bits: the device never sees half of it."""
    for device in glob.glob("/sys/bus/pci/devices/*"):
        with open(f"{device}/class") as file:
            if file.read().strip() != SD_HOST:
                continue
        config = os.open(f"{device}/config", os.O_RDWR)
        command = int.from_bytes(os.pread(config, 2, 4), "little")
        command = command | INTX_DISABLE if on else command & ~INTX_DISABLE
        os.pwrite(config, command.to_bytes(2, "little"), 4)
        os.close(config)
        return {}
    raise OSError("there is no card controller")


def wake(now: float, boot: str, entropy: str) -> Told:
    """Else two machines from one state have one clock, one boot id and the same random numbers."""
    time.clock_settime(time.CLOCK_REALTIME, now)
    with open("/dev/urandom", "wb") as pool:
        pool.write(bytes.fromhex(entropy))
        pool.flush()
        fcntl.ioctl(pool, RNDRESEEDCRNG)
    with open("/run/boot_id", "w") as file:
        file.write(boot + "\n")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"/run/boot_id", BOOT_ID.encode(), None, MS_BIND, None):
        raise OSError(ctypes.get_errno(), "the boot id cannot be changed")
    return {}


DO: dict[str, Callable[..., Told]] = {"sh": sh, "api": api, "stall": stall, "wake": wake, "nothing": dict}


def answer(request: Told, port: int, lock: threading.Lock) -> None:
    name, number = request.pop("do"), request.pop("id")
    try:
        told = DO[name](**request)
    except Exception:
        told = {"error": traceback.format_exc()}
    line = json.dumps({"id": number, **told}).encode() + b"\n"
    with lock:
        while line:
            line = line[os.write(port, line) :]


def main() -> None:
    while not os.path.exists(PORT):
        time.sleep(0.05)
    port, lock, rest = os.open(PORT, os.O_RDWR), threading.Lock(), b""
    while True:
        came = os.read(port, 1 << 16)
        if not came:  # nobody is at the host's end
            time.sleep(0.02)
            continue
        *lines, rest = (rest + came).split(b"\n")
        for line in lines:
            threading.Thread(target=answer, args=(json.loads(line), port, lock), daemon=True).start()


if __name__ == "__main__":
    main()
