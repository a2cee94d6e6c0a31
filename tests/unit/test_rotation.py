"""Promises of a rotation: whatever was signed before its end is trusted, and what is signed is trusted by then."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ate.errors import FailedPrecondition
from ate.identity import ca, jwt_pool, rotation
from ate.identity.rotation import Term, in_force

LONGEST = timedelta(hours=1)


def pool_file(tmp_path: Path) -> Path:
    path = tmp_path / "pool.json"
    path.write_text(ca.to_json(ca.CaPool((ca.make_authority("1"),))))
    return path


def rotate(path: Path, at: float, overlap: int = 600) -> tuple[str, float, float]:
    return rotation.rotate(
        path,
        ca.LIST,
        lambda id_: ca.to_entry(ca.make_authority(id_)),
        longest=LONGEST,
        overlap=timedelta(seconds=overlap),
        now=lambda: at,
    )


def ids(path: Path, at: float) -> list[str]:
    return [authority.id for authority in ca.load(path).at(at).authorities]


def test_a_new_authority_is_trusted_at_once_signs_later_and_the_old_one_ends_last(tmp_path: Path) -> None:
    path = pool_file(tmp_path)
    fresh, signs, ends = rotate(path, 1000.0)
    assert (fresh, signs) == ("2", 1600.0) and ends >= signs + LONGEST.total_seconds()
    assert ids(path, 999.0) == ids(path, 1599.0) == ["1", "2"]
    assert ids(path, 1600.0) == ids(path, ends - 1) == ["2", "1"]
    assert ids(path, ends) == ["2"]


def test_what_was_signed_last_by_the_old_one_is_trusted_until_it_is_over(tmp_path: Path) -> None:
    path = pool_file(tmp_path)
    _, signs, _ = rotate(path, 0.0)
    assert "1" in ids(path, signs - 1 + LONGEST.total_seconds())


def test_rotations_follow_each_other_and_what_ended_is_taken_out(tmp_path: Path) -> None:
    path = pool_file(tmp_path)
    _, signs, ends = rotate(path, 0.0)
    with pytest.raises(FailedPrecondition, match="under way"):
        rotate(path, signs - 1)
    rotate(path, signs)
    assert ids(path, signs) == ["2", "1", "3"], "two rotations overlap"
    rotate(path, ends + 10_000)
    kept = [entry["ID"] for entry in json.loads(path.read_text())[ca.LIST]]
    assert "1" not in kept and len(kept) == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_pool_whose_authorities_are_all_over_says_so(tmp_path: Path) -> None:
    path = pool_file(tmp_path)
    document = json.loads(path.read_text())
    document["CAs"][0]["TrustedUntil"] = 5.0
    path.write_text(json.dumps(document))
    with pytest.raises(FailedPrecondition, match="make another pool"):
        ca.load(path).at(5.0)


def test_a_file_that_is_no_pool_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for text in ("", "{}", '{"CAs": 3}', '{"CAs": [{"TrustedUntil": "soon"}]}'):
        path.write_text(text)
        with pytest.raises(FailedPrecondition, match="cannot be rotated"):
            rotate(path, 0.0)
        assert path.read_text() == text


def test_tokens_rotate_like_certificates(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    path.write_text(jwt_pool.to_json(jwt_pool.JwtPool((jwt_pool.make_authority("a"),))))
    make = lambda id_: jwt_pool.to_entry(jwt_pool.make_authority(id_))  # noqa: E731
    _, signs, ends = rotation.rotate(path, jwt_pool.LIST, make, longest=LONGEST, now=lambda: 0.0)
    pool = jwt_pool.open_pool(path).current()
    assert [key["kid"] for key in pool.at(signs - 1).jwks()["keys"]] == ["a", "1"]
    assert [key["kid"] for key in pool.at(signs).jwks()["keys"]] == ["1", "a"]
    assert [key["kid"] for key in pool.at(ends).jwks()["keys"]] == ["1"]


terms = st.builds(
    Term,
    signs_from=st.sampled_from([0.0, 10.0, 20.0, 30.0]),
    trusted_until=st.none() | st.sampled_from([15.0, 25.0, 35.0]),
)


@given(st.lists(terms, min_size=1, max_size=5), st.floats(0, 40))
def test_whoever_signs_is_trusted_and_no_one_who_signs_later_signs_now(listed: list[Term], now: float) -> None:
    found = in_force(list(zip(listed, range(len(listed)), strict=True)), now)
    assert len(set(found)) == len(found)
    for each in found:
        until = listed[each].trusted_until
        assert until is None or now < until
    if found:
        signing = [n for n in found if listed[n].signs_from <= now]
        if signing:
            assert listed[found[0]].signs_from == max(listed[n].signs_from for n in signing)
