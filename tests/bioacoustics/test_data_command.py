"""`notela data ...` as it is typed, against servers on this machine that play Xeno-canto and Zenodo."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import pytest

from local_server import Answer, Server, serving
from notela.bioacoustics import download, prepared, target_sets, xeno_canto
from notela.bioacoustics.download import Patience
from notela.cli import main
from sounds import sing

SECRET = "s3cr3t-k3y"
LICENCE = "https://creativecommons.org/licenses/by-nc-sa/4.0/"


class Shown(NamedTuple):
    code: int | str | None
    out: str
    err: str

    def row(self, species: str) -> list[str]:
        """The cells of a species in the table."""
        (line,) = [line for line in self.out.splitlines() if re.match(rf"│ {species} +│", line)]
        return [cell.strip() for cell in line.strip("│").split("│")][1:]


Run = Callable[..., Shown]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process: exit code, and what was written."""
    monkeypatch.setenv("COLUMNS", "300")

    def command(*words: object) -> Shown:
        monkeypatch.setattr(sys, "argv", ["notela", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return Shown(end.value.code, *capsys.readouterr())

    return command


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Instead of both sites; nobody waits."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XENO_CANTO_KEY", SECRET)
    for module in (download, target_sets, xeno_canto):
        monkeypatch.setattr(module, "Patience", lambda: Patience(attempts=3, sleep=lambda seconds: None))
    with serving() as running:
        monkeypatch.setattr(xeno_canto, "SITE", running.url)
        monkeypatch.setattr(target_sets, "ZENODO", running.url)
        yield running


def one_sentence(shown: Shown, message: str) -> None:
    assert shown.code == 2, shown
    assert re.fullmatch(f"notela: .*{message}.*\n", shown.err), shown.err
    assert SECRET not in shown.out + shown.err


# ---- Xeno-canto


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return sing(tmp_path_factory.mktemp("sound") / "a.wav", 7, [(3, 2000)], rate=8000).read_bytes()


@pytest.fixture
def site(server: Server, sound: bytes) -> Server:
    """Three blackbirds, two of them of quality B; a great tit; a species that begins like another."""
    publish(server, sound, {1: "Turdus merula", 2: "Turdus merula", 3: "Turdus merula", 4: "Parus major"}, best=(2, 4))
    return server


def publish(server: Server, sound: bytes, recordings: dict[int, str], best: tuple[int, ...] = ()) -> None:
    """An API that knows the tags gen, sp and q, the first two as beginnings of words."""

    def answer(headers: dict[str, str], asked: str) -> Answer:
        tags = dict(re.findall(r'(\w+):"?([^" ]+)', parse_qs(asked)["query"][0]))
        found = []
        for number, name in recordings.items():
            genus, epithet = name.split()
            quality = "A" if number in best else "B"
            if genus.startswith(tags["gen"]) and epithet.startswith(tags["sp"]) and tags.get("q", quality) == quality:
                about = {"id": str(number), "gen": genus, "sp": epithet, "q": quality, "lic": LICENCE, "length": "0:07"}
                found.append({**about, "file": f"{server.url}/{number}/download", "file-name": f"XC{number}.wav"})
        return Answer(json.dumps({"numPages": 1, "recordings": found}).encode())

    server.answers["/api/3/recordings"] = answer
    for number in recordings:
        server.put_file(f"/{number}/download", sound)


def queries(server: Server) -> list[str]:
    return [parse_qs(path.partition("?")[2])["query"][0] for path in server.paths if path.startswith("/api")]


def downloads(server: Server) -> list[str]:
    return [path for path in server.paths if path.endswith("/download")]


def sounds_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.wav"))


def failures(folder: Path) -> dict[str, str]:
    with open(folder / "failures.csv", newline="", encoding="utf-8") as file:
        return {row["id"]: row["reason"] for row in csv.DictReader(file)}


def test_recordings_and_a_table(site: Server, run: Run, sound: bytes, tmp_path: Path) -> None:
    to = tmp_path / "recordings"
    shown = run("data", "xeno-canto", "Turdus merula", "Great Tit", "--to", to)
    assert shown.code == 0
    assert sounds_in(to) == ["Parus_major/XC4.wav", *(f"Turdus_merula/XC{number}.wav" for number in (1, 2, 3))]
    assert (to / "Parus_major" / "XC4.wav").read_bytes() == sound
    assert "2 of 2 names matched to 2 species" in shown.out
    assert shown.row("Turdus merula") == ["3", "0", "0"]
    assert shown.row("Parus major") == ["1", "0", "0"]
    assert SECRET not in shown.out + shown.err
    assert "not fetched" not in shown.out


def test_again_fetches_only_what_is_missing(site: Server, run: Run, tmp_path: Path) -> None:
    words = ("data", "xeno-canto", "Turdus merula", "--to", tmp_path)
    run(*words)
    (tmp_path / "Turdus_merula" / "XC2.wav").unlink()
    site.asked.clear()
    shown = run(*words)
    assert shown.code == 0
    assert shown.row("Turdus merula") == ["1", "2", "0"]
    assert downloads(site) == ["/2/download"]


def test_conditions_are_asked_for_and_the_best_come_first(site: Server, run: Run, tmp_path: Path) -> None:
    conditions = ("--quality", "a, B", "--length", "5-60", "--country", "Costa Rica", "--licence", "BY-NC-SA")
    shown = run("data", "xeno-canto", "Turdus merula", "--to", tmp_path, "--most", 2, *conditions)
    assert shown.code == 0
    assert sounds_in(tmp_path) == ["Turdus_merula/XC1.wav", "Turdus_merula/XC2.wav"]
    both = 'len:5-60 cnt:"Costa Rica" lic:BY-NC-SA'
    assert queries(site) == [f"gen:Turdus sp:merula q:{quality} {both}" for quality in "AB"]
    site.asked.clear()
    run("data", "xeno-canto", "Turdus merula", "--to", tmp_path / "one", "--most", 1, *conditions)
    assert sounds_in(tmp_path / "one") == ["Turdus_merula/XC2.wav"]
    assert len(queries(site)) == 1  # enough of the best: the others are not even asked for


def test_a_list_of_species_and_names_that_are_none(site: Server, run: Run, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# of the garden\nParus major_Great Tit\ngretit1\nTurdus merulla magna\n")
    shown = run("data", "xeno-canto", "--species", tmp_path / "list.txt", "--to", tmp_path / "to")
    assert shown.code == 0
    assert "unmatched: 'Turdus merulla magna'" in shown.out
    assert queries(site) == ["gen:Parus sp:major"]
    assert sounds_in(tmp_path / "to") == ["Parus_major/XC4.wav"]


def test_a_species_that_xeno_canto_knows_by_another_name(
    server: Server, run: Run, sound: bytes, tmp_path: Path
) -> None:
    publish(server, sound, {1: "Sylvia undata"})
    shown = run("data", "xeno-canto", "Sylvia undata", "--to", tmp_path)
    assert queries(server) == ["gen:Curruca sp:undata", "gen:Sylvia sp:undata"]
    assert shown.row("Curruca undata") == ["1", "0", "0"]
    assert sounds_in(tmp_path) == ["Sylvia_undata/XC1.wav"]


def test_other_species_that_begin_alike_are_left_out(server: Server, run: Run, sound: bytes, tmp_path: Path) -> None:
    publish(server, sound, {1: "Anas creccaria", 2: "Anastomus crecca", 3: "Anas crecca"})
    run("data", "xeno-canto", "Anas crecca", "--to", tmp_path, "--most", 1)
    assert sounds_in(tmp_path) == ["Anas_crecca/XC3.wav"]


def test_what_was_fetched_goes_straight_into_prepare(site: Server, run: Run, tmp_path: Path) -> None:
    to, focal = tmp_path / "recordings", tmp_path / "focal"
    shown = run("data", "xeno-canto", "Turdus merula", "Parus major", "--to", to)
    (told,) = re.findall(r"notela (prepare .*)", shown.out)
    assert told == (
        f"prepare {to} --to focal --focal --about {to}/manifest.csv "
        "--about-columns recording=file,licence=licence,group=id"
    )
    ready = run(*(word if word != "focal" else focal for word in told.split()), "--workers", 1)
    assert ready.code == 0, ready
    data = prepared.read(focal)
    assert {Path(name).stem for name in data.table["recording"]} == {"XC1", "XC2", "XC3", "XC4"}
    assert {one.scientific for one in data.classes} == {"Turdus merula", "Parus major"}
    assert set(data.table["licence"]) == {LICENCE}


def test_a_bad_line_is_waited_out(site: Server, run: Run, sound: bytes, tmp_path: Path) -> None:
    search, left = site.answers["/api/3/recordings"], [Answer(b"", 503)]
    site.answers["/api/3/recordings"] = lambda *asked: left.pop() if left else search(*asked)
    site.put_file("/4/download", sound, cuts=[1000, 5000])
    shown = run("data", "xeno-canto", "Parus major", "--to", tmp_path)
    assert shown.code == 0
    assert (tmp_path / "Parus_major" / "XC4.wav").read_bytes() == sound
    assert len(queries(site)) == 2
    assert len(downloads(site)) == 3


def test_what_cannot_be_had_is_listed_and_the_rest_goes_on(site: Server, run: Run, tmp_path: Path) -> None:
    site.put("/1/download", Answer(b"gone", 404))
    site.put("/2/download", Answer(b"", 503))
    shown = run("data", "xeno-canto", "Turdus merula", "Parus major", "Strix aluco", "--to", tmp_path)
    assert shown.code == 0
    assert shown.row("Turdus merula") == ["1", "0", "2"]
    assert shown.row("Parus major") == ["1", "0", "0"]
    assert "1 species have no such recordings at Xeno-canto: Strix aluco" in shown.out
    assert re.search(r"not fetched: XC1 \(Turdus merula\): .*HTTP 404", shown.out)
    assert re.search(r"not fetched: XC2 \(Turdus merula\): .*HTTP 503 .*, 3 times in a row", shown.out)
    assert f"2 recordings could not be fetched; all are in {tmp_path / 'failures.csv'}" in shown.out
    assert failures(tmp_path).keys() == {"1", "2"}


def test_where_nothing_comes_it_is_one_sentence(site: Server, run: Run, tmp_path: Path) -> None:
    none = run("data", "xeno-canto", "Strix aluco", "--to", tmp_path / "a")
    one_sentence(none, "Xeno-canto has no such recordings of Strix aluco; ask for others, or with fewer conditions")
    assert not (tmp_path / "a").exists()
    site.put("/4/download", Answer(b"gone", 404))
    one_sentence(
        run("data", "xeno-canto", "Parus major", "--to", tmp_path / "b"),
        r"none of the 1 recordings could be fetched \(first: XC4 \(Parus major\): .*HTTP 404 Not Found\)",
    )
    site.put("/api/3/recordings", Answer(b"", 503))
    one_sentence(
        run("data", "xeno-canto", "Parus major", "--to", tmp_path / "c"),
        r"/api/3/recordings cannot be reached \(HTTP 503 Service Unavailable, 3 times in a row\); try again later",
    )
    message = json.dumps({"error": "client_error", "message": f"Invalid key {SECRET}"}).encode()
    site.put("/api/3/recordings", Answer(message, 401))
    one_sentence(
        run("data", "xeno-canto", "Parus major", "--to", tmp_path / "d"), "refuses the search .*Invalid key <key>"
    )


def test_a_line_that_goes_down_keeps_what_came(server: Server, run: Run, sound: bytes, tmp_path: Path) -> None:
    publish(server, sound, dict.fromkeys(range(1, 10), "Parus major"))
    for number in range(3, 10):
        server.put(f"/{number}/download", Answer(b"", 503))
    shown = run("data", "xeno-canto", "Parus major", "--to", tmp_path)
    one_sentence(shown, "5 recordings in a row cannot be reached .*; what came is kept: run it again to go on")
    assert sounds_in(tmp_path) == ["Parus_major/XC1.wav", "Parus_major/XC2.wav"]


PROGRAM = """
import sys
from notela.bioacoustics import xeno_canto
xeno_canto.SITE = sys.argv.pop(1) or xeno_canto.SITE
from notela.cli import main
main()
"""


def start(*words: str, site: str = "", **environment: str) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if name != "XENO_CANTO_KEY"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, site, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, **environment},
    )


def test_ctrl_c_loses_nothing_and_says_so(site: Server, run: Run, sound: bytes, tmp_path: Path) -> None:
    site.put("/2/download", Answer(sound, hang=True))
    words = ("data", "xeno-canto", "Turdus merula", "--to", str(tmp_path))
    process = start(*words, site=site.url, XENO_CANTO_KEY=SECRET, no_proxy="127.0.0.1")
    deadline = time.monotonic() + 120
    while "/2/download" not in site.paths and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.strip() == "Stopped. What is done is kept; the same command goes on from there."
    assert "Traceback" not in out
    assert sounds_in(tmp_path) == ["Turdus_merula/XC1.wav"]
    site.put_file("/2/download", sound)
    shown = run(*words)
    assert shown.row("Turdus merula") == ["2", "1", "0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Turdus merula"], "searching Xeno-canto needs a key: sign in at https://xeno-canto.org, copy yours"),
        (["Turdus merulla magna"], "none of the names is that of a species; write scientific names"),
        ([], "no species is named; write some, such as 'Turdus merula', or --species LIST"),
        (["--species", "nowhere.txt"], "the species list nowhere.txt cannot be read"),
        (["Turdus merula", "--quality", "A,F"], "--quality 'A,F' names 'F'; the qualities are A, B, C, D, E"),
        (["Turdus merula", "--length", "short"], "--length 'short' is not a length in seconds; write 5-60, <60 or >5"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], message: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XENO_CANTO_KEY", raising=False)
    one_sentence(run("data", "xeno-canto", *words, "--to", tmp_path / "to"), re.escape(message))
    assert not (tmp_path / "to").exists()


def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    process = start("data", "xeno-canto", "Turdus merula", "--to", str(tmp_path))
    out, err = process.communicate(timeout=120)
    one_sentence(Shown(process.returncode, out, err), "needs a key: .* set it with export XENO_CANTO_KEY=")


# ---- target sets


BOXES = (
    b"Filename,Start Time (s),End Time (s),Low Freq (Hz),High Freq (Hz),Species eBird Code\nT_0.flac,0,1,1,2,amerob\n"
)


def zipped(**files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as opened:
        for name, data in files.items():
            opened.writestr(f"{name}.flac", data)
    return content.getvalue()


FILES = {
    "annotations.csv": BOXES,
    "species.csv": b"Species eBird Code\namerob\n",
    "soundscape_data.zip": zipped(T_0=bytes(range(256)) * 40),
}
MD5 = {name: hashlib.md5(data).hexdigest() for name, data in FILES.items()}
ZIP = "/records/12345/files/soundscape_data.zip"


@pytest.fixture
def zenodo(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The record of a tiny set."""
    tiny = replace(
        target_sets.TARGET_SETS["SSW"], name="TST", record=12345, files=MD5, recordings=1, boxes=1, species=(1,)
    )
    monkeypatch.setitem(target_sets.TARGET_SETS, "TST", tiny)
    listed = [{"key": name, "size": len(data), "checksum": f"md5:{MD5[name]}"} for name, data in FILES.items()]
    server.put("/api/records/12345", Answer(json.dumps({"files": listed}).encode()))
    for name, data in FILES.items():
        server.put_file(f"/records/12345/files/{name}", data)
    return server


FOUND = "1 recordings\n1 boxes\n1 species\n"


def test_a_set_is_fetched_over_a_bad_line_and_verified(zenodo: Server, run: Run, tmp_path: Path) -> None:
    zenodo.put_file(ZIP, FILES["soundscape_data.zip"], cuts=[100, 200])
    shown = run("data", "fetch", "tst", "--to", tmp_path)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == "".join(f"{name} has the published MD5\n" for name in MD5) + FOUND
    assert (tmp_path / "TST" / "soundscape_data" / "T_0.flac").stat().st_size == 256 * 40
    zenodo.asked.clear()
    assert run("data", "fetch", "TST", "--to", tmp_path).code == 0
    assert zenodo.paths == ["/api/records/12345"]
    same = run("data", "verify", "TST", tmp_path / "TST")
    assert (same.code, same.out, same.err) == (0, shown.out, "")


def test_what_zenodo_does_not_say_is_told_as_a_sentence(zenodo: Server, run: Run, tmp_path: Path) -> None:
    zenodo.put("/api/records/12345", Answer(b"", 503))
    shown = run("data", "fetch", "TST", "--to", tmp_path)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("Zenodo's list of the files of TST cannot be read (")
    assert "Warning" not in shown.out
    assert shown.out.endswith(FOUND)


def test_fetching_in_vain_is_one_sentence(zenodo: Server, run: Run, tmp_path: Path) -> None:
    one_sentence(run("data", "fetch", "SWS", "--to", tmp_path), "'SWS' is not a target set; known are SSW, SNE")
    one_sentence(run("data", "fetch", "Caples", "--to", tmp_path), "Caples has no public record to fetch")
    zenodo.put(ZIP, Answer(b"", 503))
    one_sentence(run("data", "fetch", "TST", "--to", tmp_path), r"soundscape_data.zip cannot be reached \(HTTP 503")
    damaged = bytearray(FILES["soundscape_data.zip"])
    damaged[50] ^= 1
    zenodo.put_file(ZIP, bytes(damaged))
    one_sentence(run("data", "fetch", "TST", "--to", tmp_path), "came with MD5 .*, expected MD5 .*: fetch it again")
    assert not list((tmp_path / "TST").glob("soundscape_data*"))
    zenodo.put_file(ZIP, FILES["soundscape_data.zip"])
    assert run("data", "fetch", "TST", "--to", tmp_path).code == 0


def test_a_folder_that_differs_ends_with_1(zenodo: Server, run: Run, tmp_path: Path) -> None:
    run("data", "fetch", "TST", "--to", tmp_path)
    (tmp_path / "TST" / "soundscape_data" / "T_0.flac").unlink()
    (tmp_path / "TST" / "species.csv").unlink()
    shown = run("data", "verify", "TST", tmp_path / "TST")
    assert (shown.code, shown.err) == (1, "")
    assert "differs: species.csv is not there\ndiffers: 0 recordings, expected 1\n" in shown.out
    one_sentence(run("data", "verify", "TST", tmp_path / "nowhere"), "nowhere is not a folder; give the one that holds")


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_a_bar_says_which_file_is_in_work(
    command: str, zenodo: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("data", "fetch", "TST", "--to", tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    place: list[Any] = ["--to", tmp_path] if command == "fetch" else [tmp_path / "TST"]
    shown = run("data", command, "TST", *place)
    assert shown.code == 0
    for name in MD5:
        assert f"TST: {name}" in shown.err
