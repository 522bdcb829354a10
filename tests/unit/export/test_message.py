from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health_exporter.export.message import (
    Headers,
    MalformedRequestError,
    Request,
    Response,
    can_become_request,
    gzip_accepted,
    head_end,
    parse_request,
    render,
)

EPOCH_2020 = 1577836800.0


def parse(text: str) -> tuple[str, Request]:
    return parse_request(text.encode("latin-1"), client="192.0.2.1")


def rendered(response: Response, accept: str | None = None) -> tuple[dict[str, str], bytes]:
    head, _, body = render(response, accept_encoding=accept, unix_time=EPOCH_2020).partition(
        b"\r\n\r\n"
    )
    fields = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
    assert len({name.lower() for name, _ in fields}) == len(fields), "a header twice"
    return {name.lower(): value for name, value in fields}, body


def test_a_request_has_method_path_query_headers_and_client():
    method, request = parse("GET /metrics?a=1&b HTTP/1.1\r\nHost: h\r\nX-Y:  z \r\n\r\n")

    assert method == "GET"
    assert (request.path, request.query, request.client) == ("/metrics", "a=1&b", "192.0.2.1")
    assert dict(request.headers) == {"host": "h", "x-y": "z"}


def test_header_names_compare_without_case():
    headers = Headers([("Accept", "text/plain"), ("ACCEPT", "text/html")])

    assert headers["aCCept"] == "text/plain, text/html"
    assert "ACCEPT" in headers
    assert headers.get("Host") is None


def test_header_values_stay_out_of_the_representation():
    assert "secret" not in repr(Headers([("Authorization", "Basic secret")]))


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/metrics?", "/metrics", ""),
        ("/%6detrics?q=%20", "/metrics", "q=%20"),
        ("http://host:9/metrics?q", "/metrics", "q"),
        ("HTTP://host", "/", ""),
        ("http://host?q", "/", "q"),
        ("//host/metrics", "//host/metrics", ""),
        ("*", "*", ""),
    ],
)
def test_a_target_is_split_into_path_and_query(target: str, path: str, query: str):
    _, request = parse(f"GET {target} HTTP/1.0\r\n\r\n")

    assert (request.path, request.query) == (path, query)


@pytest.mark.parametrize(
    "text",
    [
        "GET /metrics HTTP/1.0\n\n",
        "\r\nGET /metrics HTTP/1.0\r\n\r\n",
        "GET /metrics HTTP/1.0\r\nA: b\n\r\n",
    ],
)
def test_line_ends_that_the_rfc_tolerates(text: str):
    assert parse(text)[1].path == "/metrics"


@pytest.mark.parametrize(
    "text",
    [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/1.0",
        "GET / HTTP/1.0\r\n",
        "GET  / HTTP/1.0\r\n\r\n",
        "GET / x HTTP/1.0\r\n\r\n",
        "G(T / HTTP/1.0\r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "GET / http/1.0\r\n\r\n",
        "GET /\x00 HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.0\r\nno colon\r\n\r\n",
        "GET / HTTP/1.0\r\n: no name\r\n\r\n",
        "GET / HTTP/1.0\r\nspace : before colon\r\n\r\n",
        "GET / HTTP/1.0\r\nA: b\r\n folded\r\n\r\n",
        "GET / HTTP/1.0\r\nA: b\x00\r\n\r\n",
        "GET / HTTP/1.0\r\nA: b\rc\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_malformed(text: str):
    with pytest.raises(MalformedRequestError):
        parse(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_malformed(data: bytes):
    try:
        method, request = parse_request(data, client="")
    except MalformedRequestError:
        return
    assert method
    assert request.path


@pytest.mark.timeout(10)
def test_a_long_header_is_parsed_in_linear_time():
    with pytest.raises(MalformedRequestError):
        parse("GET / HTTP/1.0\r\nA:" + " \t" * 200_000 + "\x00\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "end"),
    [(b"", None), (b"a\r\n", None), (b"a\r\n\r\nb", 5), (b"a\n\nb", 3), (b"a\n\r\nb", 4)],
)
def test_a_head_ends_with_an_empty_line(data: bytes, end: int | None):
    assert head_end(data) == end


@pytest.mark.parametrize(
    ("data", "possible"),
    [(b"", True), (b"\r\n", True), (b"GE", True), (b"\x16\x03\x01", False), (b"\r\n\x00", False)],
)
def test_another_protocol_is_known_by_its_first_byte(data: bytes, possible: bool):
    assert can_become_request(data) is possible


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZip", True),
        ("x-gzip", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip ; Q=0.001", True),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("*;q=0, gzip", True),
        ("identity", False),
        ("identity;q=0.5, gzip;q=0.4", False),
        ("identity;q=0.5, gzip;q=0.6", True),
        ("gzip;q=high", False),
        ("gzip;q=", False),
        ("gzip;q=7", False),
        ("gzip;q=-1", False),
        ("gzipped", False),
        (",,;,", False),
    ],
)
def test_gzip_is_used_if_the_client_takes_it(header: str | None, accepted: bool):
    assert gzip_accepted(header) is accepted


def test_every_response_has_the_common_headers():
    headers, body = rendered(Response(body=b"x", content_type="text/html"))

    assert body == b"x"
    assert headers == {
        "date": "Wed, 01 Jan 2020 00:00:00 GMT",
        "content-type": "text/html",
        "content-length": "1",
        "connection": "close",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "vary": "Accept-Encoding",
    }


def test_a_response_adds_and_overrides_headers():
    response = Response(headers={"cache-control": "max-age=9", "Vary": "Accept", "X-A": "b"})

    headers, _ = rendered(response)

    assert headers["cache-control"] == "max-age=9"
    assert headers["vary"] == "Accept, Accept-Encoding"
    assert headers["x-a"] == "b"


def test_a_large_body_is_compressed_for_who_accepts_it():
    body = b"training_health_loss 1.0\n" * 1000

    headers, sent = rendered(Response(body=body), accept="gzip")

    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Accept-Encoding"
    assert int(headers["content-length"]) == len(sent) < len(body) // 10
    assert gzip.decompress(sent) == body
    assert sent[4:8] == bytes(4)  # no clock was read: the same body is the same bytes


@pytest.mark.parametrize("accept", [None, "gzip;q=0"])
def test_a_large_body_is_sent_as_it_is_to_others(accept: str | None):
    body = b"a" * 10_000

    headers, sent = rendered(Response(body=body), accept=accept)

    assert "content-encoding" not in headers
    assert headers["vary"] == "Accept-Encoding"
    assert sent == body


def test_a_tiny_body_is_not_compressed():
    headers, sent = rendered(Response(body=b"ok\n" * 100), accept="gzip")

    assert "content-encoding" not in headers
    assert sent == b"ok\n" * 100


def test_a_body_that_is_already_encoded_is_left_alone():
    response = Response(body=b"z" * 9000, headers={"Content-Encoding": "br"})

    headers, sent = rendered(response, accept="gzip")

    assert headers["content-encoding"] == "br"
    assert sent == response.body


def test_a_status_without_a_name_has_an_empty_reason():
    assert render(Response(status=599), unix_time=0).startswith(b"HTTP/1.1 599 \r\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"status": 99}, ValueError),
        ({"status": 600}, ValueError),
        ({"status": 204}, ValueError),
        ({"status": 304}, ValueError),
        ({"body": "text"}, TypeError),
        ({"content_type": "text/plain\r\nX: y"}, ValueError),
        ({"headers": {"X": "a\r\nSet-Cookie: b"}}, ValueError),
        ({"headers": {"X y": "a"}}, ValueError),
        ({"headers": {"Content-Length": "3"}}, ValueError),
        ({"headers": {"connection": "keep-alive"}}, ValueError),
    ],
)
def test_a_response_that_would_break_http_is_refused(
    arguments: dict[str, object], error: type[Exception]
):
    with pytest.raises(error):
        Response(**arguments)  # type: ignore[arg-type]
