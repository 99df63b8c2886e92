"""A tiny program for the supervisor's tests: python fake_program.py key=value…

port      answer HTTP 200 to everything on this port
after     seconds before listening
die       exit with this code after `live` seconds
stubborn  ignore SIGTERM
child     start a grandchild that ignores SIGTERM and writes its pid to this file; wait for that
slow      answer 503 while this file is there
stopped   append the name `as` to this file on SIGTERM, then exit
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

options = dict(word.split("=", 1) for word in sys.argv[1:])


def on_term(*_args: object) -> None:
    with pathlib.Path(options["stopped"]).open("a") as file:
        file.write(options["as"] + "\n")
    sys.exit(0)


sys.stderr.write("fake program starts\n")
if "stubborn" in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "note" in options:
    pathlib.Path(options["note"]).write_text(str(os.getpid()))
if "stopped" in options:
    signal.signal(signal.SIGTERM, on_term)
if "child" in options:
    note = pathlib.Path(options["child"])
    note.unlink(missing_ok=True)
    subprocess.Popen([sys.executable, "-I", "-S", __file__, "stubborn=1", f"note={note}"])
    while not note.exists() or not note.read_text():
        time.sleep(0.01)
time.sleep(float(options.get("after", 0)))
deadline = time.monotonic() + float(options.get("live", 3600))
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.settimeout(0.05)
if "port" in options:
    server.bind(("127.0.0.1", int(options["port"])))
    server.listen()
while "die" not in options or time.monotonic() < deadline:
    if "port" not in options:
        time.sleep(0.05)
        continue
    try:
        connection, _ = server.accept()
    except TimeoutError:
        continue
    with connection:
        connection.recv(4096)
        status = (
            b"503 Slow"
            if "slow" in options and pathlib.Path(options["slow"]).exists()
            else b"200 OK"
        )
        connection.sendall(
            b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
        )
sys.stderr.write("fake program ends\n")
sys.exit(int(options["die"]))
