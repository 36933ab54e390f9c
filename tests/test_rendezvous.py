"""Processes meet before they connect, and learn which of them ended: threads in the place of processes."""

import contextlib
import re
import socket
import threading
import time

import pytest

from efficientdet.plugins.jax_processes import peers, rendezvous
from efficientdet.plugins.jax_processes.rendezvous import Place, meet, rank_on_host
from program_support.errors import InputError


@pytest.fixture
def address():
    with socket.socket() as one:
        one.bind(("", 0))
        return f"localhost:{one.getsockname()[1]}"


@pytest.fixture(autouse=True)
def closed_afterwards(monkeypatch):
    """Connections that the tests leave open, as processes do that end."""
    everyone = []

    def made(*arguments):
        everyone.append(peers.Peers(*arguments))
        return everyone[-1]

    monkeypatch.setattr(rendezvous, "Peers", made)
    monkeypatch.setattr(peers, "_SECONDS_TO_RAISE", 1e6)  # they would end this process
    yield
    for one in everyone:
        if not one.loop.is_closed():
            one.close()


def met(address, count, numbers, *, seconds, strangers=(), tokens=None):
    """Return what each process gets, in threads of this one; `strangers`: bytes that others send before."""
    found = {}

    def one(number):
        try:
            place = Place(address, count, number, name=f"host{number // 2}", token=(tokens or {}).get(number, "job"))
            found[number] = meet(place, seconds=seconds)
        except InputError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=one, args=[number]) for number in numbers]
    for thread in threads[:1]:
        thread.start()
    with contextlib.ExitStack() as stack:  # such as a health check
        for content in strangers:
            stack.enter_context(connected(address)).sendall(content)
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def connected(address):
    for _ in range(100):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("localhost", int(address.rsplit(":", 1)[1])))
        time.sleep(0.05)
    raise AssertionError("process 0 does not listen")


STRANGERS = [
    b"GET / HTTP/1.1\r\n\r\n",
    b'[99, "x"]\n',
    b'[1, "x"]\n',
    b"null\n",
    b"[" * 60_000 + b"\n",
    b"x" * 100_000 + b"\n",
    b"\xff\xfe\n",
    b'{"number": 1, "count": 3, "name": "x"}\n',
    b'{"number": true, "count": 3, "name": "x", "token": "job"}\n',
    b'{"number": 1, "count": 3, "name": "x", "token": "\\u00e9"}\n',
    b'{"number": 1, "count": 3, "name": "x", "token": "of another job"}\n',
    b'{"number": 7, "count": 3, "name": "x", "token": "job"}\n',
    b"",
]


def test_all_processes_learn_the_hosts_of_all_and_no_stranger_takes_a_place(address):
    hosts = ["host0", "host0", "host1"]
    found = met(address, 3, [0, 2, 1], seconds=30, strangers=STRANGERS)
    assert {number: peers.names for number, peers in found.items()} == {0: hosts, 1: hosts, 2: hosts}
    assert [rank_on_host(hosts, number) for number in range(3)] == [(0, 2), (1, 2), (0, 1)]


def test_those_that_came_are_told_who_did_not(address, monkeypatch):
    reports = set()
    monkeypatch.setattr(rendezvous._Meeting, "_report", lambda self, line: reports.add((self._place.number, line)))
    monkeypatch.setattr(rendezvous, "_SECONDS_BETWEEN_MESSAGES", 0.2)
    found = met(address, 3, [0, 2], seconds=1)
    assert found[0] == found[2] == f"waiting for process 1 of 3 at {address} ended after 1 s"
    assert {(number, f"waiting for process 1 of 3 at {address}, up to 1 s") for number in (0, 2)} <= reports


def test_a_process_alone_reports_whom_it_waits_for(address, monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "_SECONDS_UNTIL_REPORT", 0.0)
    met(address, 2, [1], seconds=0.5)
    assert (
        f"process 1 of 2: no answer from process 0 at {address} yet, waiting up to 0.5 s (" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no-such-host.invalid:61440", "the host of process 0 cannot be resolved"),
        ("localhost:99999", "expected host:port, port 1 to 65535"),
        ("localhost:0", "expected host:port, port 1 to 65535"),
        ("localhost:" + "9" * 5000, "expected host:port, port 1 to 65535"),
        ("localhost:\u0661", "expected host:port, port 1 to 65535"),
    ],
)
@pytest.mark.parametrize("number", [0, 1])
def test_an_address_that_cannot_be_used_is_refused_at_once(address, message, number):
    assert message in met(address, 2, [number], seconds=600)[number]


@pytest.mark.parametrize(
    ("counts", "tokens", "message"),
    [
        ((2, 3), ("job", "job"), "process 1 of 3 at .*: process 0 was started as one of 2"),
        ((2, 2), ("job", "other"), "process 1 of 2 at .*: the process that listens there belongs to another job"),
    ],
)
def test_processes_of_different_jobs_do_not_meet(address, counts, tokens, message):
    first = threading.Thread(target=met, args=[address, counts[0], [0]], kwargs={"seconds": 1})
    first.start()
    with pytest.raises(InputError, match=message):
        meet(Place(address, counts[1], 1, name="host", token=tokens[1]), seconds=5)
    first.join()


def test_two_processes_of_one_number_do_not_meet(address):
    found = met(address, 3, [0, 1], seconds=1, strangers=[b'{"number": 1, "count": 3, "name": "h", "token": "job"}\n'])
    assert re.fullmatch(r"process 1 of 3 at .*: another process 1 is there, on h; .*", found[1])


def test_process_0_of_localhost_listens_on_this_machine_only():
    for host in ("localhost", "127.0.0.1"):
        sockets = rendezvous._listening(Place(f"{host}:0", 2, 0, name=""))
        assert {one.getsockname()[0] for one in sockets} <= {"127.0.0.1", "::1"}
        for one in sockets:
            one.close()


def test_each_process_learns_which_one_ended_and_why(address):
    """Process 2 is killed without a word to process 0, which tells process 1."""
    found = met(address, 3, [0, 1, 2], seconds=30)
    found[2].loop.call_soon_threadsafe(found[2].writers[0].transport.abort)
    expected = "process 2 of 3, on host1, ended: killed, or its machine is not reachable"
    assert found[0].reason_of_lost_connection(seconds=10).startswith(expected)
    assert found[1].reason_of_lost_connection(seconds=10).startswith(expected)
    with pytest.raises(InputError, match="process 2 of 3"), found[1].waiting():
        pass


@pytest.mark.parametrize(
    ("number", "state", "ends"),
    [(1, {}, True), (1, {"is_done": True}, False), (0, {}, False), (0, {"_waiting": True}, True)],
)
def test_a_process_without_the_others_ends_unless_it_has_work_of_its_own(address, monkeypatch, number, state, ends):
    """Process 0 may be writing a checkpoint."""
    exits = []
    found = met(address, 2, [0, 1], seconds=30)
    monkeypatch.setattr(peers, "_SECONDS_TO_RAISE", 0.05)
    monkeypatch.setattr(peers, "exit_at_once", exits.append)
    for name, value in state.items():
        setattr(found[number], name, value)
    found[1 - number].close()
    assert found[number].reason_of_lost_connection(seconds=10)
    time.sleep(0.2)
    assert exits == [2] * ends


@pytest.mark.parametrize(("leaving", "other"), [(0, 1), (1, 0)])
def test_the_reason_reaches_the_others(address, monkeypatch, leaving, other):
    monkeypatch.setattr(peers, "_SECONDS_TO_LEAVE", 0.5)
    found = met(address, 2, [0, 1], seconds=30)
    found[leaving].leave("out of memory\nat --batch_size=512")
    expected = f"process {leaving} of 2, on host0, ended: out of memory at --batch_size=512; the same command resumes"
    assert found[other].reason_of_lost_connection(seconds=10).startswith(expected)
