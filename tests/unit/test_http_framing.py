"""Promises of the tunnel's HTTP framing: nothing ambiguous passes, and everything that passes is unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ate import http_framing as framing
from ate.http_framing import BadMessage

tokens = st.text("abcXYZ-_09", min_size=1, max_size=12).map(str.encode)
texts = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map(str.encode)


@given(method=tokens, target=texts.filter(bool), headers=st.lists(st.tuples(tokens, texts), max_size=8))
def test_a_head_comes_out_as_it_went_in(method: bytes, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    head = framing.RequestHead(method, target, b"HTTP/1.1", tuple(headers))
    encoded = framing.encode_request(head)
    assert framing.find_head(encoded + b"rest") == len(encoded)
    assert framing.parse_request(encoded) == head


@pytest.mark.parametrize(
    "lines",
    [
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b"GET / HTTP/2.0",
        b"GET /a b HTTP/1.1",
        b"GET / HTTP/1.1\r\nName : v",
        b"GET / HTTP/1.1\r\n Folded: v",
        b"GET / HTTP/1.1\r\nA: 1\r\n folded",
        b"GET / HTTP/1.1\r\nA: 1\nB: 2",
        b"GET / HTTP/1.1\r\nA: 1\rB: 2",
        b"GET / HTTP/1.1\r\nA: nul\x00",
        b"GET / HTTP/1.1\r\n: empty",
        b"GET / HTTP/1.1\r\nno colon",
    ],
)
def test_a_malformed_head_is_refused(lines: bytes) -> None:
    with pytest.raises(BadMessage):
        framing.parse_request(lines + b"\r\n\r\n")


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 1\r\nContent-Length: 1",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked",
        b"Content-Length: +1",
        b"Content-Length: 1, 1",
        b"Content-Length: 0x1",
        b"Content-Length: ",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: ",
    ],
)
def test_a_body_whose_length_can_be_read_in_two_ways_is_refused(headers: bytes) -> None:
    with pytest.raises(BadMessage):
        framing.request_body(framing.parse_request(b"POST / HTTP/1.1\r\n" + headers + b"\r\n\r\n"))


def test_chunks_need_http_1_1() -> None:
    with pytest.raises(BadMessage):
        framing.request_body(framing.parse_request(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"))


def test_a_head_that_never_ends_is_refused() -> None:
    with pytest.raises(BadMessage):
        framing.find_head(b"GET / HTTP/1.1\r\nA: " + b"x" * framing.MAX_HEAD)


@given(chunks=st.lists(st.binary(min_size=1, max_size=50), max_size=6), trailer=st.booleans(), data=st.data())
def test_a_chunked_body_ends_where_it_ends_however_it_is_cut(
    chunks: list[bytes], trailer: bool, data: st.DataObject
) -> None:
    body = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    body += b"0\r\n" + (b"T: v\r\n" if trailer else b"") + b"\r\n"
    stream = body + b"GET /next"
    reader, taken, buffer, position = framing.ChunkedBody(), 0, bytearray(), 0
    while not reader.done:
        step = data.draw(st.integers(1, 20))
        buffer += stream[position : position + step]
        position += step
        used = reader.take(buffer)
        taken += used
        del buffer[:used]
    assert taken == len(body)


@pytest.mark.parametrize(
    "body", [b"zz\r\n", b"5\r\nhelloX\r\n", b"5\nhello\r\n", b"-1\r\n", b"\r\n", b"0\r\nbad trailer\r\n\r\n"]
)
def test_a_malformed_chunk_is_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        framing.ChunkedBody().take(body)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_parse_or_be_refused(data: bytes) -> None:
    for parse in (framing.parse_request, framing.parse_response):
        try:
            parse(data + b"\r\n\r\n")
        except BadMessage:
            pass
    try:
        assert 0 <= framing.ChunkedBody().take(data) <= len(data)
    except BadMessage:
        pass


def test_internal_headers_go_in_whatever_case_and_others_stay_in_place() -> None:
    headers = (
        (b"X-ATE-Uid", b"1"),
        (b"Host", b"h"),
        (b"ate-Target-Actor", b"a/b"),
        (b"x-ate-", b""),
        (b"X-Other", b"2"),
    )
    assert framing.without(headers, (b"ate-target-actor",), b"x-ate-") == ((b"Host", b"h"), (b"X-Other", b"2"))


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
def test_responses_without_a_body_have_none_whatever_their_headers_say(method: bytes, status: int) -> None:
    head = framing.parse_response(b"HTTP/1.1 %d X\r\nContent-Length: 10\r\n\r\n" % status)
    assert framing.response_body(head, method).done
