"""Xeno-canto's API as a server on this machine plays it: pages, restricted species, wrong keys, bad lines."""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

import notela.bioacoustics.xeno_canto as module
from local_server import Answer, Server, serving
from notela.bioacoustics.download import DiskError, Patience, Unreachable
from notela.bioacoustics.xeno_canto import MANIFEST, Fetched, Recording, XenoCanto, query
from notela.errors import NotelaError

SECRET = "s3cr3t-k3y"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XENO_CANTO_KEY", SECRET)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def client(server: Server, clock: Clock | None = None, **settings: Any) -> XenoCanto:
    clock = clock or Clock()
    patience = Patience(attempts=settings.pop("attempts", 4), sleep=clock.sleep)
    return XenoCanto(site=server.url, patience=patience, clock=clock, **settings)


def entry(server: Server, number: int, **changes: Any) -> dict[str, Any]:
    """A recording in the API's own form."""
    return {
        "id": str(number),
        "gen": "Troglodytes",
        "sp": "troglodytes",
        "ssp": "",
        "grp": "birds",
        "en": "Eurasian Wren",
        "rec": "A. Recordist",
        "cnt": "Spain",
        "lat": "42.8373",
        "lon": "-8.652",
        "type": "song",
        "url": f"//xeno-canto.org/{number}",
        "file": f"{server.url}/{number}/download",
        "file-name": f"XC{number}-Eurasian Wren.MP3",
        "lic": "//creativecommons.org/licenses/by-nc-sa/4.0/",
        "q": "A",
        "length": "1:14",
        "also": ["Turdus merula", ""],
        **changes,
    }


def publish(server: Server, entries: list[dict[str, Any]], per_page: int = 50) -> None:
    """The API over these entries; the sound of each is its id."""

    def answer(headers: dict[str, str], asked: str) -> Answer:
        wanted = {name: values[0] for name, values in parse_qs(asked).items()}
        if wanted.get("key") != SECRET:
            message = f"Missing or invalid 'key' parameter ({wanted.get('key')})."
            return Answer(json.dumps({"error": "client_error", "message": message}).encode(), 401)
        page = int(wanted.get("page", 1))
        body = {
            "numRecordings": str(len(entries)),
            "numSpecies": "1",
            "page": page,
            "numPages": -(-len(entries) // per_page),
            "recordings": entries[(page - 1) * per_page : page * per_page],
        }
        return Answer(json.dumps(body).encode())

    server.answers["/api/3/recordings"] = answer
    for one in entries:
        server.put_file(f"/{one['id']}/download", sound(one["id"]))


def sound(number: str) -> bytes:
    return f"sound of {number} ".encode() * 1000


def table(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def downloads(server: Server) -> list[str]:
    return [path for path in server.paths if path.endswith("/download")]


# ---- queries


def test_queries_have_tags_only() -> None:
    assert query("Turdus merula", q="A", grp="birds") == "gen:Turdus sp:merula q:A grp:birds"
    assert query(gen="Turdus", len=">20", cnt="Costa Rica") == 'gen:Turdus len:">20" cnt:"Costa Rica"'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs at least one tag"),
        ({"species": "Turdus"}, "'Turdus' is not a scientific name of two words"),
        ({"gen": ""}, "gen='' cannot be searched for"),
        ({"rec": 'a "b"'}, "holds a quotation mark"),
    ],
)
def test_queries_that_cannot_be(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(NotelaError, match=message):
        query(**arguments)


# ---- searching


def test_a_recording_is_read_as_it_is_meant(server: Server) -> None:
    publish(server, [entry(server, 694038)])
    (one,) = client(server).search(query("Troglodytes troglodytes", q="A"))
    assert one == Recording(
        id="694038",
        genus="Troglodytes",
        epithet="troglodytes",
        english="Eurasian Wren",
        recordist="A. Recordist",
        licence="https://creativecommons.org/licenses/by-nc-sa/4.0/",
        country="Spain",
        latitude=42.8373,
        longitude=-8.652,
        length=74.0,
        background=("Turdus merula",),
        quality="A",
        url="https://xeno-canto.org/694038",
        file=f"{server.url}/694038/download",
        file_name="XC694038-Eurasian Wren.MP3",
    )
    asked = parse_qs(server.paths[0].partition("?")[2])
    assert asked == {
        "query": ["gen:Troglodytes sp:troglodytes q:A"],
        "key": [SECRET],
        "per_page": ["500"],
        "page": ["1"],
    }


def test_pages_one_after_another_each_recording_once(server: Server) -> None:
    entries = [entry(server, number) for number in range(120)]
    entries.insert(50, entries[49])  # somebody uploaded meanwhile: the last of page 1 is the first of page 2
    publish(server, entries)
    found = client(server).search(query(grp="birds"), per_page=50)
    assert next(found).id == "0"
    assert len(server.asked) == 1  # the next page is asked for when it is needed
    assert [one.id for one in found] == [str(number) for number in range(1, 120)]
    assert [parse_qs(path)["page"] for path in server.paths] == [["1"], ["2"], ["3"]]


def test_nothing_found(server: Server) -> None:
    publish(server, [])
    assert list(client(server).search(query(gen="Nobody"))) == []


def test_what_is_missing_is_none_and_old_names_are_understood(server: Server) -> None:
    old = entry(server, 1, lng="7.5", lat=None, length="?", also=None, file="", **{"file-name": None})
    del old["lon"]
    publish(server, [old])
    (one,) = client(server).search(query(gen="T"))
    assert (one.longitude, one.latitude, one.length, one.background, one.file) == (7.5, None, None, (), None)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_lengths(hours: int, minutes: int, seconds: int) -> None:
    assert module._seconds(f"{hours}:{minutes:02d}:{seconds:02d}") == 3600 * hours + 60 * minutes + seconds
    assert module._seconds(f"{minutes}:{seconds:02d}") == 60 * minutes + seconds


@pytest.mark.parametrize("per_page", [49, 501, 50.5])
def test_page_sizes(per_page: Any, server: Server) -> None:
    with pytest.raises(NotelaError, match="per_page"):
        next(client(server).search("gen:T", per_page=per_page))
    assert not server.asked


def test_no_key_says_where_to_get_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XENO_CANTO_KEY")
    with pytest.raises(
        NotelaError, match=r"needs a key: .*xeno-canto.org/account and set it with export XENO_CANTO_KEY="
    ):
        next(client(server).search("gen:T"))
    assert not server.asked


def test_a_wrong_key_is_told_in_the_api_s_words_but_never_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, [])
    monkeypatch.setenv("XENO_CANTO_KEY", "wr0ng-key")
    with pytest.raises(
        NotelaError, match=r"refuses the search 'gen:T': Missing or invalid 'key' parameter \(<key>\)"
    ) as caught:
        next(client(server).search("gen:T"))
    assert "wr0ng-key" not in str(caught.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(b'{"error": {"code": "missing_parameter", "message": "No query specified"}}'), "No query specified"),
        (Answer(b'{"error": {"code": "x", "message": "No query specified"}}', 400), "No query specified"),
        (Answer(b"<html>", 403), "/api/3/recordings is not to be had: HTTP 403"),
        (Answer(b"<html>maintenance"), r"not JSON \('<html>maintenance'\)"),
        (Answer(b'{"numPages": 1, "recordings": [{'), "not JSON"),
        (Answer(b"[]"), "in a form that is not known here .KeyError"),
        (Answer(b'{"numPages": "many", "recordings": []}'), "not known here .ValueError"),
        (Answer(b'{"numPages": 1, "recordings": [{"gen": "T"}]}'), "not known here .KeyError: 'id'"),
        (Answer(b'{"numPages": 1, "recordings": [{"id": "../1"}]}'), "not known here .ValueError: the id '../1'"),
        (Answer(b'{"numPages": 1, "recordings": ["a"]}'), "not known here .TypeError"),
        (Answer(b"", 503), "cannot be reached .HTTP 503 Service Unavailable, 4 times in a row"),
    ],
)
def test_bad_answers_are_one_sentence_without_the_key(answer: Answer, message: str, server: Server) -> None:
    server.put("/api/3/recordings", answer)
    with pytest.raises(NotelaError, match=message) as caught:
        list(client(server).search("gen:T"))
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_503_passes(server: Server) -> None:
    publish(server, [entry(server, 1)])
    good = server.answers["/api/3/recordings"]
    left = [Answer(b"", 503), Answer(b"", 429, {"Retry-After": "7"})]
    server.answers["/api/3/recordings"] = lambda headers, asked: left.pop(0) if left else good(headers, asked)
    clock = Clock()
    assert [one.id for one in client(server, clock).search("gen:T")] == ["1"]
    assert clock.slept[1] == 7


def test_the_rate_holds_for_searches_and_recordings_together(server: Server, tmp_path: Path) -> None:
    publish(server, [entry(server, number) for number in range(60)])
    clock, times = Clock(), []
    for path, answer in list(server.answers.items()):
        server.answers[path] = lambda headers, asked, answer=answer: (times.append(clock.now), answer(headers, asked))[
            1
        ]
    xc = client(server, clock, per_second=4)
    xc.fetch(xc.search("gen:T", per_page=50), tmp_path)
    assert len(times) == 62
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) == pytest.approx(0.25)
    assert sum(gaps) == pytest.approx(61 * 0.25)


# ---- fetching


def test_sounds_and_manifest(server: Server, tmp_path: Path) -> None:
    entries = [
        entry(server, 1),
        entry(server, 2, gen="Turdus", sp="merula", rec='Ann, "the ear"\nof Spain', **{"file-name": "XC2.wav"}),
    ]
    publish(server, entries)
    seen: list[tuple[str, int]] = []
    xc = client(server)
    fetched = xc.fetch(xc.search("gen:T"), tmp_path, progress=lambda one, so_far: seen.append((one.id, so_far.new)))
    assert fetched == Fetched(new=2)
    assert seen == [("1", 1), ("2", 2)]
    assert (tmp_path / "Troglodytes_troglodytes" / "XC1.mp3").read_bytes() == sound("1")
    assert (tmp_path / "Turdus_merula" / "XC2.wav").read_bytes() == sound("2")
    first, second = table(tmp_path / "manifest.csv")
    assert first == {
        "id": "1",
        "species": "Troglodytes troglodytes",
        "file": "Troglodytes_troglodytes/XC1.mp3",
        "recordist": "A. Recordist",
        "licence": "https://creativecommons.org/licenses/by-nc-sa/4.0/",
        "country": "Spain",
        "latitude": "42.8373",
        "longitude": "-8.652",
        "length_s": "74.0",
        "background": "Turdus merula",
        "quality": "A",
        "url": "https://xeno-canto.org/1",
    }
    assert second["recordist"] == 'Ann, "the ear" of Spain'
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "Troglodytes_troglodytes",
        "Turdus_merula",
        "manifest.csv",
    ]


def test_again_fetches_only_what_is_missing(server: Server, tmp_path: Path) -> None:
    publish(server, [entry(server, number) for number in range(5)])
    xc = client(server)
    recordings = list(xc.search("gen:T"))
    xc.fetch(recordings[:3], tmp_path)
    (tmp_path / "Troglodytes_troglodytes" / "XC1.mp3").unlink()
    server.asked.clear()
    assert xc.fetch(recordings, tmp_path) == Fetched(new=3, there=2)
    assert downloads(server) == ["/1/download", "/3/download", "/4/download"]
    assert [row["id"] for row in table(tmp_path / "manifest.csv")] == ["0", "1", "2", "3", "4"]


def test_a_kill_at_any_byte_of_the_manifest_loses_nothing(server: Server, tmp_path: Path) -> None:
    publish(server, [entry(server, number, rec="Zoë, of Köln") for number in range(3)])
    xc = client(server)
    recordings = list(xc.search("gen:T"))
    xc.fetch(recordings, tmp_path)
    manifest = tmp_path / "manifest.csv"
    whole = manifest.read_bytes()
    server.asked.clear()
    inside = whole.index("ë".encode()) + 1  # half a character
    for length in (0, 1, inside, *range(5, len(whole), 31), len(whole) - 1):
        manifest.write_bytes(whole[:length])
        assert xc.fetch(recordings, tmp_path) == Fetched(there=3)
        assert manifest.read_bytes() == whole
    assert not server.asked


def test_a_kill_between_sound_and_manifest(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(server, [entry(server, 1), entry(server, 2)])
    xc = client(server)
    recordings = list(xc.search("gen:T"))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_append", killed)
        with pytest.raises(KeyboardInterrupt):
            xc.fetch(recordings, tmp_path)
    assert xc.fetch(recordings, tmp_path) == Fetched(new=1, there=1)
    assert downloads(server) == ["/1/download", "/2/download"]
    assert [row["id"] for row in table(tmp_path / "manifest.csv")] == ["1", "2"]


def test_what_cannot_be_had_is_listed_and_the_rest_goes_on(server: Server, tmp_path: Path) -> None:
    entries = [
        entry(server, 1, file="", **{"file-name": ""}),
        entry(server, 2),
        entry(server, 3, **{"file-name": "XC3"}),
        entry(server, 4),
        entry(server, 5),
    ]
    publish(server, entries)
    server.put("/2/download", Answer(b"gone", 404))
    server.put("/4/download", Answer(b"", 503))
    xc = client(server)
    fetched = xc.fetch(xc.search("gen:T"), tmp_path)
    assert (fetched.new, fetched.there) == (1, 0)
    failures = table(tmp_path / "failures.csv")
    assert {row["id"]: row["reason"] for row in failures} == fetched.failed
    assert [row["id"] for row in failures] == ["1", "2", "3", "4"]
    for row, reason in zip(
        failures, ["restricted", "HTTP 404", "ends in the name of a format", "HTTP 503"], strict=True
    ):
        assert reason in row["reason"]
    assert [row["id"] for row in table(tmp_path / "manifest.csv")] == ["5"]
    server.put_file("/2/download", sound("2"))
    xc.fetch([one for one in xc.search("gen:T") if one.id == "2"], tmp_path)
    assert [row["id"] for row in table(tmp_path / "failures.csv")] == ["1", "3", "4"]


def test_the_list_of_failures_goes_away_with_the_last(server: Server, tmp_path: Path) -> None:
    publish(server, [entry(server, 1)])
    server.put("/1/download", Answer(b"", 404))
    xc = client(server)
    recordings = list(xc.search("gen:T"))
    xc.fetch(recordings, tmp_path)
    assert (tmp_path / "failures.csv").exists()
    server.put_file("/1/download", sound("1"))
    assert xc.fetch(recordings, tmp_path) == Fetched(new=1)
    assert not (tmp_path / "failures.csv").exists()


def test_a_cut_sound_is_continued(server: Server, tmp_path: Path) -> None:
    publish(server, [entry(server, 1)])
    server.put_file("/1/download", sound("1"), cuts=[100, 200])
    xc = client(server)
    assert xc.fetch(xc.search("gen:T"), tmp_path).new == 1
    assert (tmp_path / "Troglodytes_troglodytes" / "XC1.mp3").read_bytes() == sound("1")
    assert [headers.get("range") for path, headers in server.asked if path.endswith("download")] == [
        None,
        "bytes=100-",
        "bytes=300-",
    ]


def test_a_line_that_is_down_ends_it(server: Server, tmp_path: Path) -> None:
    publish(server, [entry(server, number) for number in range(20)])
    xc = client(server, attempts=1)
    recordings = list(xc.search("gen:T"))
    for number in range(2, 20):
        server.put(f"/{number}/download", Answer(b"", 503))
    with pytest.raises(Unreachable, match=r"5 recordings in a row cannot be reached \(.*503.*\); what came is kept"):
        xc.fetch(recordings, tmp_path)
    assert len(table(tmp_path / "manifest.csv")) == 2
    assert len(table(tmp_path / "failures.csv")) == 5


def test_a_full_disk_ends_it(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(server, [entry(server, number) for number in range(3)])
    xc = client(server)
    recordings = list(xc.search("gen:T"))

    def full(*_: Any, **__: Any) -> None:
        raise DiskError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(module, "download", full)
        with pytest.raises(DiskError):
            xc.fetch(recordings, tmp_path)
    assert not (tmp_path / "failures.csv").exists()
    assert xc.fetch(recordings, tmp_path).new == 3


def test_a_disk_that_takes_half_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dict.fromkeys(MANIFEST, "x")
    path = tmp_path / "manifest.csv"
    module._append(path, MANIFEST, row)
    whole = path.read_bytes()

    class Short:
        def __init__(self, path: Path, mode: str, buffering: int) -> None:
            self.file = open(path, mode, buffering=buffering)  # noqa: SIM115

        def __enter__(self) -> Short:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def tell(self) -> int:
            return self.file.tell()

        def write(self, data: bytes) -> int:
            return self.file.write(data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(module, "open", Short, raising=False)
        with pytest.raises(DiskError, match="No space left"):
            module._append(path, MANIFEST, row)
    assert len(path.read_bytes()) > len(whole)
    assert module._read(path, MANIFEST) == [row]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("genus", "epithet", "folder"),
    [("../..", "/etc", "_etc"), ("", "", "Unknown_sp"), ("Corvus", "sp.", "Corvus_sp"), ("Zoë", "d'or", "Zoë_dor")],
)
def test_names_from_elsewhere_stay_below_the_folder(
    genus: str, epithet: str, folder: str, server: Server, tmp_path: Path
) -> None:
    publish(server, [entry(server, 1, gen=genus, sp=epithet)])
    xc = client(server)
    xc.fetch(xc.search("gen:T"), tmp_path / "to")
    assert (tmp_path / "to" / folder / "XC1.mp3").read_bytes() == sound("1")
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


@pytest.mark.parametrize("name", ["manifest.csv", "failures.csv"])
def test_another_table_of_that_name_is_left_alone(name: str, server: Server, tmp_path: Path) -> None:
    (tmp_path / name).write_text("my,own\n1,2\n")
    with pytest.raises(NotelaError, match=f"{name} is not a table of notela: .*move it away"):
        client(server).fetch([], tmp_path)
    assert (tmp_path / name).read_text() == "my,own\n1,2\n"
    (tmp_path / name).write_bytes(b"\xff\xfe\n")
    with pytest.raises(NotelaError, match=f"{name} cannot be read"):
        client(server).fetch([], tmp_path)


def test_the_key_is_nowhere_on_the_disk_or_in_the_client(server: Server, tmp_path: Path, capfd: Any) -> None:
    publish(server, [entry(server, 1), entry(server, 2, file="")])
    xc = client(server)
    recordings = list(xc.search("gen:T"))
    xc.fetch(recordings, tmp_path)
    assert SECRET not in repr(vars(xc)) + repr(recordings)
    assert {field.name for field in fields(Recording)} >= {"licence", "recordist"}
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()
    assert SECRET not in "".join(capfd.readouterr())
    assert os.environ["XENO_CANTO_KEY"] == SECRET
