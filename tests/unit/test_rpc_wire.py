"""Promises of ate.rpc.wire: what is encoded is decoded the same, and hostile input is an error of the tree."""

import pytest
from google.rpc import error_details_pb2
from grpclib.const import Status
from grpclib.metadata import decode_timeout
from hypothesis import given
from hypothesis import strategies as st

from ate.errors import InvalidArgument, NotFound, Unknown
from ate.rpc import wire


@given(st.floats(min_value=1e-6, max_value=1e8))
def test_a_timeout_never_becomes_shorter_on_the_wire_and_grows_by_little(seconds):
    text = wire.encode_timeout(seconds)
    assert len(text) <= 9
    assert seconds * (1 - 1e-9) <= decode_timeout(text) <= seconds * 1.001 + 1e-6


def test_an_expired_deadline_is_sent_as_nothing_left():
    assert wire.encode_timeout(-3.0) == "0n"


@given(st.text(max_size=200))
def test_a_status_text_of_any_characters_survives_the_wire(text):
    trailers = wire.status_trailers(Status.NOT_FOUND, text)
    assert all(value == value.strip() for _, value in trailers)
    error = wire.trailers_error(trailers)
    assert isinstance(error, NotFound)
    assert error.message == text


def test_details_survive_the_wire():
    detail = error_details_pb2.RetryInfo()
    detail.retry_delay.seconds = 3
    error = wire.trailers_error(wire.status_trailers(Status.ABORTED, "again", [detail]))
    assert error is not None
    assert error.details == (detail,)


def test_details_too_large_for_a_header_block_are_dropped_and_the_status_stays():
    detail = error_details_pb2.DebugInfo(detail="x" * 20_000)
    error = wire.trailers_error(wire.status_trailers(Status.NOT_FOUND, "y" * 10_000, [detail]))
    assert isinstance(error, NotFound)
    assert error.details == ()
    assert len(error.message) < 3000


def test_trailers_without_a_status_are_unknown():
    assert isinstance(wire.trailers_error([]), Unknown)
    assert isinstance(wire.trailers_error([("grpc-status", "four")]), Unknown)


@given(st.dictionaries(st.from_regex(r"x-[a-z0-9]{1,8}-bin", fullmatch=True), st.binary(max_size=60), max_size=5))
def test_binary_metadata_survives_the_wire(metadata):
    assert dict(wire.decode_metadata(wire.metadata_headers(metadata))) == metadata


def test_metadata_that_cannot_be_sent_or_read_is_an_invalid_argument():
    for bad in ({"UPPER": "x"}, {"x": "line\nbreak"}, {"x": "blank "}, {"grpc-timeout": "1S"}, {"x-bin": "text"}):
        with pytest.raises(InvalidArgument):
            wire.metadata_headers(bad)
    with pytest.raises(InvalidArgument):
        wire.decode_metadata([("x-bin", "*")])
    with pytest.raises(InvalidArgument):
        wire.request_timeout([("grpc-timeout", "soon")])
