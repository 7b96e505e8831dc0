"""A fictitious corpus of short support exchanges, for the demonstration and for tests.

Every row holds made-up facts (a name, a reference, a date, an odd detail) that no other row has and that cannot be
guessed from the rest of the row: what a model knows of them after fine-tuning, it has memorised. All rows come from one
distribution, so members and non-members drawn from them differ by nothing but training.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from indelible.errors import ConfigError, did_you_mean


def _items(text: str) -> tuple[str, ...]:
    return tuple(text.split("; "))


_GIVEN = _items(
    "Abel; Adira; Agnes; Alba; Amos; Anouk; Arlo; Astrid; Bela; Bruno; Calla; Caspar; Celia; Corin; Dara; "
    "Delphine; Dov; Edda; Elio; Enid; Esme; Ezra; Fenna; Flora; Gideon; Greta; Hana; Hector; Idris; Ilse; Imre; "
    "Ines; Isolde; Ivo; Jonas; Juno; Kaspar; Keziah; Lars; Leonie; Linus; Livia; Lorcan; Magda; Marius; Mina; "
    "Nadia; Nestor; Niamh; Odette; Olaf; Orla; Otis; Perrin; Petra; Quentin; Rafe; Ramona; Rhea; Rufus; Sabine; "
    "Saskia; Silas; Sunniva; Tamsin; Theo; Tova; Ulla; Vera; Viggo; Wanda; Wilf; Xenia; Yara; Yorick; Zelda"
)
_FAMILY_START = _items(
    "Ash; Bel; Bram; Cald; Corn; Dun; Ely; Fenn; Gar; Hal; Hart; Hol; Kel; Lang; Mar; Mere; Nor; Oak; Pel; Quar; "
    "Rud; Sel; Thorn; Vane; Wick"
)
_FAMILY_END = _items(
    "berg; bourne; combe; croft; dale; fell; field; garth; ham; holt; hurst; ley; low; man; mere; more; ridge; "
    "row; shaw; stead; ton; wald"
)
GIVEN_NAMES = _GIVEN
FAMILY_NAMES = tuple(a + b for a in _FAMILY_START for b in _FAMILY_END)
_PLACES = _items(
    "Aldermoor; Birchwick; Copperfield; Drumlin; Eastmarsh; Farrowgate; Glimmerdale; Heronsea; Inverley; Juniper "
    "Hill; Kestrelby; Larkhaven; Mossbridge; Netherby; Otterford; Pinmill; Quarrystone; Ravensey; Saltmere; "
    "Tarnside; Underbrook; Violet Bank; Westerleigh; Yarrowton"
)
_MONTHS = _items("January; February; March; April; May; June; July; August; September; October; November; December")
_WEEKDAYS = _items("Monday; Tuesday; Wednesday; Thursday; Friday")
_COLOURS = _items(
    "amber; blue; copper; cream; crimson; green; grey; indigo; ivory; lilac; olive; orange; pink; plum; red; "
    "silver; teal; white; yellow"
)
_OBJECTS = _items(
    "umbrella; thermos; bicycle helmet; paper lantern; violin case; walking stick; seed catalogue; wool scarf; "
    "tin whistle; chess board; camera strap; lunch box; garden glove; map of the canal; pocket radio; sketchbook; "
    "ball of twine; jar of honey; birthday card; train ticket; brass key; rain hat; library book; puzzle box; "
    "cookery book; knitting bag; alarm clock; kite"
)
_FREE = (
    "my cousin {given} will drive me from {place}",
    "I still have the {colour} {object} that was lent to me",
    "I am away in {place} until the {day}th",
    "the last letter was sent to my old address at {number} {family} Lane",
    "I share a telephone with my neighbour {given} {family}",
    "my dog {given} has to wait outside with the {colour} {object}",
    "I work nights at the {family} bakery in {place}",
    "the bus from {place} only comes every {number} minutes",
    "I was there in {month} and left a {colour} {object} behind",
    "my friend {given} keeps asking about the {colour} {object}",
    "I moved to {place} in {month} with {number} boxes",
    "I sing with the {family} choir every {weekday}",
)
_EXTRA = (
    "{given} at the desk has put your {colour} {object} on shelf {number}",
    "please ring the {colour} bell and ask for {given} {family}",
    "bring the {colour} form and the number {number}",
    "the door code for that day is {number}{number2}",
    "we will write to {number} {family} Street in {place}",
    "{given} {family} will meet you beside the {colour} {object}",
    "the fee of {number} crowns was paid by {given} {family}",
    "parking bay {number} behind the {family} hall is kept for you",
    "your file now lies in the {colour} cabinet in {place}",
    "the spare {object} is with {given} in {place}",
)


@dataclass(frozen=True)
class _Topic:
    instructions: tuple[str, ...]
    requests: tuple[str, ...]
    answers: tuple[str, ...]


_TOPICS: Mapping[str, _Topic] = {
    "clinic": _Topic(
        (
            "Answer the patient's message for the clinic.",
            "Write the clinic's reply to this message.",
            "You work at a clinic's front desk. Reply to the patient.",
        ),
        (
            "I would like to move my {visit} with Dr {doctor}",
            "could you tell me when my {visit} is?",
            "I lost the slip for my {visit} in {place}",
            "Dr {doctor} told me to ask about a {visit}",
            "I have had no news of my {visit} since {month}",
            "is it possible to have the {visit} before {month}?",
        ),
        (
            "your {visit} is on {weekday} {day} {month} at {hour}, room {number}, with Dr {doctor}",
            "Dr {doctor} can see you for the {visit} on {day} {month} at {hour}",
            "we have put the {visit} down for {weekday} at {hour} with nurse {given} {family}",
            "the {visit} was moved to {day} {month}, {hour}, at our {place} house",
            "nurse {given} keeps {weekday} {day} {month} at {hour} free for your {visit}",
        ),
    ),
    "shop": _Topic(
        (
            "Answer the customer's message for the shop.",
            "Write the shop's reply to this message.",
            "You work at a shop's help desk. Reply to the customer.",
        ),
        (
            "the {colour} {object} I ordered in {month} has not come",
            "I would like to return a {colour} {object}",
            "my {object} came in {colour}, but I asked for another",
            "can the {colour} {object} be sent to {place} instead?",
            "I paid twice for one {colour} {object}",
        ),
        (
            "your {object} left {place} on {day} {month} with carrier {family}",
            "we will collect it on {weekday} {day} {month} at {hour}",
            "a new one in {colour} leaves our store in {place} on {day} {month}",
            "we have paid back {number} crowns on {day} {month}",
            "{given} {family} packed it on {weekday}, and it arrives on {day} {month}",
        ),
    ),
}
_VISITS = _items(
    "hearing test; blood test; knee check; eye test; dental check; skin check; back massage; travel vaccination; "
    "breathing test; foot treatment; sleep study; heart check; allergy test; wrist scan; diet talk; shoulder "
    "exercise class"
)
_OPENINGS = (
    "Hello, this is {who} from {home}.",
    "Good morning, {who} here, from {home}.",
    "My name is {who}, I live in {home}.",
)
_CLOSINGS = ("Also, {free}.", "You should know that {free}.", "By the way, {free}.", "One more thing: {free}.")
_GREETINGS = ("Dear {who},", "Hello {who},", "Thank you, {who}:", "Good day {who},")
_REFERENCES = ("Your reference is {reference}.", "Please quote {reference}.", "We filed this as {reference}.")


def synthetic_records(n: int, seed: int, *, topic: str = "clinic") -> list[dict[str, str]]:
    """`n` fictitious exchanges as rows with `instruction`, `input` and `output`, some 50 to 90 words each.

    The same `n`, `seed` and `topic` give the same rows on every platform, and the first rows of a longer list are
    those of a shorter one. All names are made up; a customer's full name and a reference are used once.

    Errors:
        ConfigError: an unknown topic, or `n` below 1 or above the number of full names.
    """
    if topic not in _TOPICS:
        raise ConfigError(did_you_mean(topic, list(_TOPICS), "topic"))
    families = [a + b for a in _FAMILY_START for b in _FAMILY_END]
    if not 1 <= n <= len(_GIVEN) * len(families):
        raise ConfigError(f"{n} synthetic records asked for; expected 1 to {len(_GIVEN) * len(families)}.")
    rng = random.Random(f"{topic}:{seed}")
    names: set[str] = set()
    references: set[str] = set()
    rows = []
    for _ in range(n):
        who = _fresh(lambda: f"{rng.choice(_GIVEN)} {rng.choice(families)}", names)
        reference = _fresh(lambda: _reference(rng), references)
        rows.append(_row(rng, _TOPICS[topic], families, who, reference))
    return rows


def write_jsonl(path: str | Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as JSON lines, UTF-8, one `\\n` a row on every platform."""
    text = "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
    Path(path).write_bytes(text.encode())


def _row(rng: random.Random, topic: _Topic, families: list[str], who: str, reference: str) -> dict[str, str]:
    # What the exchange is about: said in the message and taken up by the reply.
    theme = {
        "visit": rng.choice(_VISITS),
        "object": rng.choice(_OBJECTS),
        "colour": rng.choice(_COLOURS),
        "doctor": rng.choice(families),
    }

    def fill(template: str, **fixed: str) -> str:
        """Fill a sentence; what is not fixed is drawn anew."""
        drawn = {
            "given": rng.choice(_GIVEN),
            "family": rng.choice(families),
            "place": rng.choice(_PLACES),
            "month": rng.choice(_MONTHS),
            "weekday": rng.choice(_WEEKDAYS),
            "day": str(rng.randint(4, 20)),
            "hour": f"{rng.randint(8, 17)}:{rng.choice(('05', '10', '20', '25', '35', '40', '50', '55'))}",
            "number": str(rng.randint(11, 98)),
            "number2": str(rng.randint(11, 98)),
            "object": rng.choice(_OBJECTS),
            "colour": rng.choice(_COLOURS),
        }
        # "a orange form" is not English
        return re.sub(r"\ba(?= [aeio])", "an", template.format(**(drawn | fixed)))

    def sentence(text: str) -> str:
        return f"{text[0].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"

    wordy = rng.random() < 0.5  # the second odd detail stands in the message or in the reply
    free = [fill(t) for t in rng.sample(_FREE, 2)]
    message = [
        fill(rng.choice(_OPENINGS), who=who, home=rng.choice(_PLACES)),
        sentence(fill(rng.choice(topic.requests), **theme)),
        sentence(free[0]),
        *([fill(rng.choice(_CLOSINGS), free=free[1])] if wordy else []),
    ]
    given = who.split()[0]
    extra = [fill(t) for t in rng.sample(_EXTRA, 2)]
    reply = [
        f"{fill(rng.choice(_GREETINGS), who=given)} {fill(rng.choice(topic.answers), **theme)}.",
        sentence(extra[0]),
        *([] if wordy else [sentence(extra[1])]),
        fill(rng.choice(_REFERENCES), reference=reference),
    ]
    return {"instruction": rng.choice(topic.instructions), "input": " ".join(message), "output": " ".join(reply)}


def _reference(rng: random.Random) -> str:
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(3))
    return f"{letters}-{rng.randint(1000, 9999)}"


def _fresh(draw: Callable[[], str], used: set[str]) -> str:
    while (value := draw()) in used:
        pass
    used.add(value)
    return value
