"""Rough drafts of office mails, each with the formal mail it should become.

Every point of a mail has one formal wording and several rough ones, so that the mail follows from the draft, as a
rewriting task should have it. No text holds a digit or anything like a reference.

Source: the canary paper, sections III-D and A-A. Differs from the paper: its pairs are not public; these are made by a
grammar of our own, and a formal mail is never repeated, whatever its draft.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from indelible.data.synthetic import GIVEN_NAMES

_Point = tuple[str, ...]
"""The formal wording, then rough ones."""


@dataclass(frozen=True)
class _Topic:
    asks: tuple[_Point, ...]
    reasons: tuple[_Point, ...]


@dataclass(frozen=True)
class Email:
    """A draft of some 35 to 50 words, and the formal mail up to its signature, of some 40 to 55."""

    draft: str
    letter: str


_TOPICS: tuple[_Topic, ...] = (
    _Topic(
        (
            ("I am writing to ask whether our meeting about the {item} could be moved to {day} {part}.",
             "can we shift our meeting about the {item} to {day} {part}, would suit me way better",
             "need to move the {item} meeting, is {day} {part} any good for you or not really"),
            ("Unfortunately, I am unable to attend the meeting about the {item} on {day} {part}.",
             "so sorry but I can't make the {item} meeting on {day} {part}, no way around it",
             "no chance I'll get to the meeting on {day} {part}, the one about the {item}"),
            ("I would like to propose a short call about the {item} on {day} {part}.",
             "how about we just have a quick call on the {item} {day} {part} and get it over with",
             "let's talk on the phone {day} {part} about the {item}, won't be long I promise"),
        ),
        (
            ("My train does not arrive until noon, and I would not like to keep everyone waiting.",
             "my train only gets in at noon and I don't want everybody sitting there waiting",
             "the train won't be here before noon, you'd all just sit around because of me"),
            ("{who} has asked me to help at the front desk for the rest of that time.",
             "{who} wants me at the front desk the whole time so I'm stuck there",
             "got told by {who} I have to do front desk then, can't get out of it"),
            ("The figures that we need for the discussion will only be ready after that.",
             "we won't have the numbers any earlier and without them there's no point talking",
             "the numbers come later than that anyway so we would have nothing to look at"),
        ),
    ),
    _Topic(
        (
            ("I would like to request leave from {day} {part} until the end of that week.",
             "want to take some days off, from {day} {part} till the week is over if that's ok",
             "is it ok if I'm off from {day} {part} for what is left of that week"),
            ("I regret to inform you that I am ill and will not be at work before {day} {part}.",
             "I'm sick in bed, don't think you'll see me at work before {day} {part}",
             "feeling awful, not coming in, maybe I am back {day} {part} if it gets better"),
            ("I kindly ask for permission to work from home on {day} {part}.",
             "could I stay home and work from there on {day} {part}, would that be alright with you",
             "thinking of working from my place {day} {part}, hope that's no drama for anyone"),
        ),
        (
            ("{who} has agreed to take over the {item} while I am away.",
             "{who} said yes to looking after the {item} so nothing gets left lying around",
             "the {item} is sorted, {who} will do it until I'm back"),
            ("I will finish my part of the {item} before then and leave notes for everyone.",
             "I'll get my bit of the {item} done first and leave some notes for the others",
             "my half of the {item} will be finished by then and there'll be notes about it"),
            ("A heating engineer is coming to my flat, and somebody has to let him in.",
             "some heating guy comes to the flat and somebody has to open the door for him",
             "the heating is broken and I need to be there when the man comes to mend it"),
        ),
    ),
    _Topic(
        (
            ("I would be grateful if you could send me the {item} by {day} {part}.",
             "still don't have the {item} from you, I really need it by {day} {part}",
             "send me the {item} by {day} {part} ok, it's getting a bit late now"),
            ("I am afraid that the {item} will not be ready before {day} {part}.",
             "bad news, the {item} won't be done before {day} {part}, sorry about that",
             "we're late with the {item}, it'll be {day} {part} at best I think"),
            ("Please find the {item} attached, which I have revised since {day} {part}.",
             "here's the {item} again, I changed quite a few bits since {day} {part}",
             "sending you the {item} once more because I fixed some stuff since {day} {part}"),
        ),
        (
            ("{who} found several errors in the tables, and we have had to check all of them.",
             "{who} saw a bunch of mistakes in the tables so we had to go over everything",
             "there were loads of wrong things in the tables, {who} spotted them, so we check it all"),
            ("The printers have told us that they cannot wait any longer than that.",
             "the printers are getting angry and say they won't wait any longer than that",
             "printers told us that's the last day they will take it, no excuses"),
            ("Two sections are still missing, and I have no one else to ask for them.",
             "there's still two sections missing and nobody else knows anything about them",
             "two bits of it aren't there yet and there is no one else I could ask"),
        ),
    ),
    _Topic(
        (
            ("I would like to report that the {device} on our floor has not worked since {day} {part}.",
             "the {device} on our floor is broken, it's been dead since {day} {part} and nobody cares",
             "just so you know the {device} up here doesn't work any more since {day} {part}"),
            ("Could you please send someone to look at the {device} on {day} {part}?",
             "can someone have a look at our {device} on {day} {part}, it's acting up again",
             "we need somebody for the {device}, {day} {part} would be good, it keeps failing"),
            ("I am writing to ask for a replacement of our {device}, if possible on {day} {part}.",
             "we want a different {device} in the office, can they bring one {day} {part} please",
             "get rid of our {device} and bring another, best would be {day} {part}"),
        ),
        (
            ("It makes a loud noise, and {who} is worried that it may not be safe.",
             "it's making a horrible noise and {who} thinks the thing could be dangerous",
             "{who} is scared of it because of the noise, sounds like it will blow up soon"),
            ("We have tried to restart it several times, but this has made no difference.",
             "we switched it off and on like a hundred times and it didn't help at all",
             "turning it off and on again does nothing, we tried that a lot of times"),
            ("Our visitors had to use the one on the ground floor, which is rather far away.",
             "the visitors had to go all the way down to the ground floor to use that one",
             "people visiting us have to walk down to the ground floor, it's embarrassing honestly"),
        ),
    ),
    _Topic(
        (
            ("I would like to book the large room for the {item} on {day} {part}.",
             "can I have the big room on {day} {part}, it's for the {item} and we're many",
             "need the big room for the {item}, that would be {day} {part}, hope it's free"),
            ("I would like to confirm that our guests for the {item} will arrive on {day} {part}.",
             "ok so the guests for the {item} are coming {day} {part}, just to let you know",
             "just telling you the people for the {item} get here on {day} {part}, it's fixed now"),
            ("Could you please arrange lunch for the team working on the {item} on {day} {part}?",
             "we need some food for the {item} team, {day} {part}, can you sort that out",
             "could you get lunch for everyone doing the {item} on {day} {part}, that'd be great"),
        ),
        (
            ("{who} expects a dozen people, two of whom need a place without stairs.",
             "{who} says a dozen people are coming and two of them can't do any stairs",
             "it's about twelve folks says {who}, and a couple of them can't take the stairs"),
            ("Our usual place is being painted, and the smell is still rather strong.",
             "they're painting our normal place and honestly the smell in there is terrible",
             "can't use the normal spot, they painted it and it stinks like anything"),
            ("We hope to begin in good time, since some of them have a long way home.",
             "we should really start on time because some of them live far away",
             "a few of them have a long trip back so let's not start late again"),
        ),
    ),
    _Topic(
        (
            ("I am writing because the delivery of the {goods} due on {day} {part} has not arrived.",
             "where are the {goods}, they were supposed to come {day} {part} and there's nothing here",
             "still waiting for the {goods} that should've been here {day} {part}, what is going on"),
            ("I must inform you that the {goods} delivered on {day} {part} were damaged.",
             "the {goods} you brought {day} {part} are broken, I'm not happy about it at all",
             "got the {goods} on {day} {part} but they're all smashed up, what a mess"),
            ("I would like to return the {goods} that we received on {day} {part}.",
             "we don't want the {goods} any more that came {day} {part}, how do we send them back",
             "can you take the {goods} back, they came {day} {part} and they're not what we wanted"),
        ),
        (
            ("{who} called your office about this but was not able to reach anyone.",
             "{who} tried calling your office about it and nobody ever picks up the phone",
             "nobody answers the phone at your place, {who} tried it a few times"),
            ("We need a solution before the fair opens, as everything else is prepared.",
             "the fair opens soon and everything else is done so please do something",
             "all the rest is ready for the fair and only this is holding us up"),
            ("The invoice has already been paid, and I have attached a copy of it.",
             "we've paid the invoice already, you can see it in the copy I attached",
             "the bill is paid, copy is attached, so there's no reason for all this"),
        ),
    ),
)  # fmt: skip

_EXTRAS: tuple[_Point, ...] = (
    ("Please let me know whether this would be convenient for you.",
     "tell me if that works for you", "just say if that's fine with you"),
    ("Should you have any questions, please do not hesitate to ask {who2}.",
     "any questions just ask {who2}", "{who2} knows all about it if you've got questions"),
    ("I have informed {who2} so that there is no misunderstanding.",
     "I told {who2} already so no mix up", "{who2} knows so we don't get confused"),
    ("I would appreciate a brief reply at your earliest convenience.",
     "write back quick if you can", "drop me a line soon ok"),
    ("I apologise for any inconvenience that this may cause.",
     "sorry for the hassle", "hope that's not too annoying"),
    ("I will contact you again once I have spoken with {who2}.",
     "I'll get back to you when I've talked to {who2}", "will tell you more after I see {who2}"),
)  # fmt: skip

_THANKS: tuple[_Point, ...] = (
    ("Thank you very much for your help.", "thanks a lot", "cheers for that"),
    ("Thank you for your understanding.", "hope you get it, thanks", "thx for being cool about it"),
    ("I look forward to hearing from you.", "waiting to hear from you", "hope I hear back"),
)  # fmt: skip

_SLOTS: Mapping[str, tuple[str, ...]] = {
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"),
    "part": ("morning", "afternoon"),
    "item": (
        "budget", "annual report", "spring catalogue", "safety training", "summer party", "website", "staff survey",
        "office move", "sales plan", "visitor guide", "budget review", "open day", "travel policy", "newsletter",
        "workshop", "new price list",
    ),
    "device": (
        "printer", "coffee machine", "projector", "scanner", "dishwasher", "heater", "air conditioner", "door lock",
        "telephone", "water cooler", "shredder", "large screen",
    ),
    "goods": (
        "desks", "office chairs", "paper boxes", "lamps", "flower pots", "brochures", "coffee cups", "shelves",
        "screens", "name badges", "banners", "folders",
    ),
}  # fmt: skip

_SHORT: Mapping[str, str] = {
    "you": "u", "because": "cos", "please": "pls", "meeting": "mtg", "people": "ppl", "really": "rly", "thanks": "thx",
    "don't": "dont", "can't": "cant", "won't": "wont", "I'll": "ill", "I'm": "im", "it's": "its", "tomorrow": "tmrw",
    "about": "abt", "and": "n", "that's": "thats", "they're": "theyre", "going to": "gonna",
}  # fmt: skip


def draw_email(rng: random.Random) -> Email:
    """One pair. Names in it are first names; the sender signs elsewhere."""
    topic = rng.choice(_TOPICS)
    to, who, who2 = rng.sample(GIVEN_NAMES, 3)
    fields = {slot: rng.choice(values) for slot, values in _SLOTS.items()} | {"who": who, "who2": who2}
    points = [rng.choice(topic.asks), rng.choice(topic.reasons), rng.choice(_EXTRAS), rng.choice(_THANKS)]
    formal = [point[0].format(**fields) for point in points]
    rough = [rng.choice(point[1:]).format(**fields) for point in points]
    greeting = rng.choice((f"hey {to}, ", f"hi {to}, ", f"{to}, ", f"hello {to} "))
    joint = rng.choice((". ", "... ", ", "))
    draft = greeting + joint.join(rough)
    return Email(_sloppy(draft, rng), f"Dear {to},\n\n{' '.join(formal)}")


def _sloppy(text: str, rng: random.Random) -> str:
    """Some words in short, mostly no capitals."""
    words = [_SHORT[w] if w in _SHORT and rng.random() < 0.5 else w for w in re.split(r"(\W*\s+)", text)]
    out = "".join(words)
    return out.lower() if rng.random() < 0.7 else out
