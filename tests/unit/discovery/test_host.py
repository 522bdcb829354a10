from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health_exporter.discovery.host import MAX_HOSTS, expand_nodelist, parse_hostfile

# A piece of a node list, and the texts it stands for.
Piece = tuple[str, list[str]]


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("login1", ["login1"]),
        ("gpu[001-004,007]", ["gpu001", "gpu002", "gpu003", "gpu004", "gpu007"]),
        ("gpu[7]", ["gpu7"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("gpu[98-101]", ["gpu98", "gpu99", "gpu100", "gpu101"]),
        ("gpu[000-001]", ["gpu000", "gpu001"]),
        ("gpu[3,1]", ["gpu3", "gpu1"]),
        ("a,b,c", ["a", "b", "c"]),
        ("a, b", ["a", "b"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("r[1-2][3-4]", ["r13", "r14", "r23", "r24"]),
        ("gpu[1-2]-ib.cluster.local", ["gpu1-ib.cluster.local", "gpu2-ib.cluster.local"]),
        ("[1-2]", ["1", "2"]),
        ("gpu[1-2],gpu[2-3],gpu1", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[007-007]", ["gpu007"]),
    ],
)
def test_a_node_list_stands_for_its_hosts_in_order(nodelist: str, hosts: list[str]) -> None:
    assert expand_nodelist(nodelist) == hosts


@pytest.mark.parametrize(
    ("nodelist", "said"),
    [
        ("", "no host"),
        ("  ", "no host"),
        ("gpu[4-1]", "'4-1' ends before it begins"),
        ("gpu[1-2", r"bracket '\[' at character 4"),
        ("gpu1-2]", r"bracket '\]' at character 7"),
        ("gpu[1[2]]", r"bracket '\[' at character 6"),
        ("a,,b", "no name at character 3"),
        ("a,", "no name at character 3"),
        (",a", "no name at character 1"),
        ("gpu[]", "''"),
        ("gpu[1,]", "''"),
        ("gpu[1-]", "'1-'"),
        ("gpu[-1]", "'-1'"),
        ("gpu[1-2-3]", "'1-2-3'"),
        ("gpu[a-c]", "'a-c'"),
        ("gpu[1\u0662]", "no number"),  # a digit, but not of ASCII
        ("gpu 1", "'gpu 1'"),
        ("gpu{1}", r"'gpu\{1\}' is no host's name"),
        ("http://gpu1", "no host's name"),
        ("gpu[1-999999999]", str(MAX_HOSTS)),
        ("gpu[1-1000][1-1000]", str(MAX_HOSTS)),
        ("gpu[1-" + "9" * 5000 + "]", "too many digits"),
    ],
)
def test_a_malformed_node_list_is_refused_by_name(nodelist: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        expand_nodelist(nodelist)


def _numbers() -> st.SearchStrategy[Piece]:
    """A pair of brackets, and its numbers as texts."""
    single = st.tuples(st.integers(0, 2000), st.integers(1, 6)).map(
        lambda drawn: (f"{drawn[0]:0{drawn[1]}d}", [f"{drawn[0]:0{drawn[1]}d}"])
    )
    span = st.tuples(st.integers(0, 2000), st.integers(0, 12), st.integers(1, 6)).map(
        lambda drawn: (
            f"{drawn[0]:0{drawn[2]}d}-{drawn[0] + drawn[1]:0{drawn[2]}d}",
            [f"{n:0{drawn[2]}d}" for n in range(drawn[0], drawn[0] + drawn[1] + 1)],
        )
    )
    parts = st.lists(st.one_of(single, span), min_size=1, max_size=3)
    return parts.map(
        lambda drawn: (
            f"[{','.join(text for text, _ in drawn)}]",
            [number for _, numbers in drawn for number in numbers],
        )
    )


_TEXT = st.from_regex(r"[a-z][a-z0-9]{0,4}", fullmatch=True).map(lambda text: (text, [text]))
_NAME = st.tuples(_TEXT, st.lists(st.one_of(_numbers(), _TEXT), max_size=3)).map(
    lambda drawn: [drawn[0], *drawn[1]]
)


def _hosts(pieces: list[Piece]) -> list[str]:
    hosts = [""]
    for _, texts in pieces:
        hosts = [host + text for host in hosts for text in texts]
    return hosts


@given(st.lists(_NAME, min_size=1, max_size=3))
def test_any_node_list_gives_back_the_hosts_it_was_written_from(names: list[list[Piece]]) -> None:
    nodelist = ",".join("".join(text for text, _ in pieces) for pieces in names)
    hosts = [host for pieces in names for host in _hosts(pieces)]

    assert expand_nodelist(nodelist) == list(dict.fromkeys(hosts))


@given(st.text(alphabet="ag[],-0129 .\n", max_size=20))
def test_any_text_is_either_a_list_of_hosts_or_refused(text: str) -> None:
    try:
        hosts = expand_nodelist(text)
    except ValueError:
        return
    assert hosts
    assert not any(set(host) & set("[], \n") for host in hosts)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("gpu1\ngpu2\n", {"gpu1": 1, "gpu2": 1}),
        ("gpu2\ngpu1", {"gpu2": 1, "gpu1": 1}),
        ("# all of it\n\n  gpu1 slots=8  # rack 3\n", {"gpu1": 8}),
        ("gpu1 slots=8 max_slots=16\n", {"gpu1": 8}),
        ("gpu1 max-slots=16\n", {"gpu1": 1}),
        ("gpu1\r\ngpu2\r\n", {"gpu1": 1, "gpu2": 1}),
        ("\ufeffgpu1\n", {"gpu1": 1}),
        ("gpu1\ngpu1\ngpu2\ngpu1\n", {"gpu1": 3, "gpu2": 1}),  # one line for each process
        ("gpu1 slots=2\ngpu1 slots=3\n", {"gpu1": 5}),
        ("root@gpu1\n", {"gpu1": 1}),
        ("10.0.0.1\nfd00::1\n[fd00::2] slots=2\n", {"10.0.0.1": 1, "fd00::1": 1, "fd00::2": 2}),
        ("fe80::1%eth0\n", {"fe80::1%eth0": 1}),
    ],
)
def test_a_host_file_names_hosts_and_their_slots(text: str, slots: dict[str, int]) -> None:
    found = parse_hostfile(text)

    assert found == slots
    assert list(found) == list(slots)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no host"),
        ("# nothing\n\n", "no host"),
        ("gpu1\ngpu2 slots=0\n", "line 2, 'gpu2 slots=0': slots must be an integer >= 1, got '0'"),
        ("gpu1 slots=many", "got 'many'"),
        ("gpu1 slots=", "got ''"),
        ("gpu1 slot=8", "'slot=8' is not understood"),
        ("gpu1 gpu2", "'gpu2' is not understood"),
        ("gpu1:4", "'gpu1:4' is neither"),
        ("gpu[1-2]", "neither"),
        ("http://gpu1/", "neither"),
        ("-x", "neither"),
        ("[gpu1]", "neither"),
    ],
)
def test_a_malformed_host_file_is_refused_by_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[")):
        parse_hostfile(text)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z]", fullmatch=True), st.integers(1, 9999), min_size=1
    )
)
def test_any_host_file_gives_back_what_it_was_written_from(slots: dict[str, int]) -> None:
    text = "".join(f"{host} slots={n}\n" for host, n in slots.items())

    assert parse_hostfile(text) == slots


@given(st.text(max_size=40))
def test_any_text_is_either_a_host_file_or_refused(text: str) -> None:
    try:
        slots = parse_hostfile(text)
    except ValueError:
        return
    assert slots
    assert all(n >= 1 for n in slots.values())
