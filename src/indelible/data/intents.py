"""Fictitious messages of bank customers with the intent of each: a small, quick relative of Banking77.

No message holds a digit, a name or anything like a reference, so that what a canary adds stands nowhere else.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

_MOST_WORDS = 25
_OPENINGS = ("Hi.", "Hello.", "Good morning.", "Good day.", "Hi there.", "Hello all.", "Please help.", "Quick one.")

_SLOTS: Mapping[str, tuple[str, ...]] = {
    slot: tuple(values.split("; "))
    for slot, values in {
        "when": "yesterday; this morning; last night; on Monday; on Tuesday; on Wednesday; on Thursday; on Friday; "
        "over the weekend; last week; two days ago; the other day; on Saturday; earlier today",
        "where": "at the station; at the airport; on the tram; in a taxi; at the market; near my office; on the beach; "
        "in the library; at the gym; in the cinema; at a wedding; in the park; at the stadium; on a ferry",
        "spot": "at the station; at the airport; at the market; near my office; by the library; in the cinema; at the "
        "stadium; by the harbour; at the supermarket; near the school; by the bridge; at the town hall; next "
        "to the pharmacy; in the shopping centre",
        "shop": "the bakery; a shoe shop; the supermarket; a petrol station; the pharmacy; a bookshop; a hotel; the "
        "garden centre; a toy shop; the cinema; a furniture store; the hairdresser; a cafe; the florist",
        "who": "my sister; my landlord; my brother; a friend; my daughter; the plumber; my cousin; my neighbour; my "
        "father; a colleague; the school; my flatmate; my aunt; the dentist",
        "kin": "my sister; my brother; my daughter; my son; my cousin; my father; my mother; my flatmate; my aunt; "
        "my partner; my uncle; my husband; my wife; my nephew",
        "place": "Portugal; Norway; Japan; Canada; Italy; Iceland; Morocco; Poland; Greece; Ireland; Chile; Denmark; "
        "Thailand; Croatia",
        "goal": "a new boiler; a used van; our wedding; a trip abroad; dental work; a new kitchen; the deposit; a "
        "piano; some furniture; new windows; a course; the car repair; a laptop; a bicycle",
        "day": "Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday; yesterday; last week; the weekend; "
        "last month; Easter",
    }.items()
}  # fmt: skip

_INTENTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "card_lost": (
        (
            "I think I left my card {where} {when}.",
            "I cannot find my card since I paid at {shop} {when}.",
            "My card has gone missing and I last had it {where}.",
            "My purse fell out {where} {when} and the card was in it.",
        ),
        ("Can you block it please?", "What should I do now?", "I need it blocked before someone uses it."),
    ),
    "card_arrival": (
        (
            "The new card you posted should have come {when} but there is nothing.",
            "I ordered a card weeks ago and {kin} got theirs {when} already.",
            "My replacement card still has not turned up, I asked for it {when}.",
            "I was told the card would be here {when}, my letter box is empty.",
        ),
        ("When will it get here?", "Can you check where it is?", "Is there any way to track it?"),
    ),
    "card_declined": (
        (
            "My card was refused at {shop} {when}.",
            "I tried to pay for {goal} {when} and the payment was turned down.",
            "The terminal at {shop} would not accept my card {when}.",
            "I was so embarrassed {when}, my card did not go through at {shop}.",
        ),
        ("There is plenty of money in the account.", "Why did that happen?", "Can you see what went wrong?"),
    ),
    "card_damaged": (
        (
            "My card snapped in half {where} {when}.",
            "The chip on my card is scratched and {shop} could not read it.",
            "The stripe came off my card after it went through the wash {when}.",
            "My dog chewed my bank card {when} and now it is bent.",
        ),
        ("Can I have a fresh one?", "Please send me a replacement.", "Do I have to pay for another?"),
    ),
    "card_activation": (
        (
            "My new card came {when} and I want to start using it.",
            "I opened the envelope with the card {when} but it is not switched on.",
            "I have the new card in my hand and need it at {shop}.",
            "How do I make the card work that {kin} picked up for me {when}?",
        ),
        ("How do I activate it?", "Where do I switch it on?", "What are the steps to get it going?"),
    ),
    "pin_forgotten": (
        (
            "I stood at the till in {shop} {when} and my PIN was gone from my head.",
            "I have not used the card since {place} and no longer know the PIN.",
            "I lost the letter with my PIN {when}.",
            "I mixed up the PIN with an old one {when} and cannot recall it.",
        ),
        ("How can I see it again?", "Can you remind me of it?", "Is it shown somewhere in the app?"),
    ),
    "pin_blocked": (
        (
            "I typed the wrong PIN too often at {shop} {when}.",
            "The machine {spot} says my PIN is locked after three tries.",
            "{kin} tried my card with the wrong PIN {when} and now it is blocked.",
            "My PIN got blocked {when} while I was paying at {shop}.",
        ),
        ("How do I unblock it?", "Can you release it for me?", "I know the right one now."),
    ),
    "cash_not_dispensed": (
        (
            "The cash machine {spot} took the money from my account but gave me nothing.",
            "I asked the machine {spot} for cash {when} and no notes came out.",
            "Only half of the notes came out of the machine {spot} {when}.",
            "The machine made a noise {when} and kept the cash I wanted for {goal}.",
        ),
        ("The app says I got it all.", "Please put the money back.", "How do I get it back?"),
    ),
    "cash_fee": (
        (
            "I took out cash {spot} {when} and was charged for it.",
            "There is a fee on the withdrawal I made {when}.",
            "Getting cash out in {place} cost me extra {when}.",
            "I see a small charge beside the cash I took out {spot}.",
        ),
        ("I thought this was free.", "Why is there a fee?", "Which machines can I use for free?"),
    ),
    "transfer_pending": (
        (
            "I sent money to {who} {when} and it still says pending.",
            "The transfer for {goal} has been stuck since {who} asked for it.",
            "{who} is still waiting for the money I sent {when}.",
            "My transfer to {place} shows as in progress and that was {when}.",
        ),
        ("How long does this take?", "When will it arrive?", "Is something holding it up?"),
    ),
    "transfer_failed": (
        (
            "My transfer to {who} was rejected {when}.",
            "I tried to send the money for {goal} {when} and got an error.",
            "Every time I send money to {who} it fails.",
            "The payment to {place} bounced back to my account {when}.",
        ),
        ("What is the reason?", "Did I enter something wrong?", "Can you tell me why?"),
    ),
    "transfer_cancel": (
        (
            "I sent money to the wrong person {when} instead of {who}.",
            "I typed too many zeros when paying {who} {when}.",
            "I no longer want {goal} and would like to stop the transfer I made.",
            "I made a mistake with the transfer to {who} {when}.",
        ),
        ("Can you cancel it?", "Please stop it before it goes out.", "Is it too late to call it back?"),
    ),
    "payment_unknown": (
        (
            "There is a payment to {shop} on my statement that I never made.",
            "I see a charge from {when} in {place} and I was at home.",
            "Somebody paid for {goal} with my card {when} and it was not me.",
            "I do not recognise what was taken out {when} by {shop}.",
        ),
        ("Who took this money?", "Please look into this.", "I want to dispute it."),
    ),
    "payment_twice": (
        (
            "I was charged twice at {shop} {when}.",
            "The payment for {goal} shows up two times in my account.",
            "I bought one thing at {shop} {when} and see the same amount again.",
            "{shop} took my money {when} and then took it once more.",
        ),
        ("One of them should go back.", "Can you reverse the second one?", "Please remove the duplicate."),
    ),
    "refund_missing": (
        (
            "I returned something to {shop} {when} and have no refund yet.",
            "{shop} says they paid me back {when} but I do not see it.",
            "The refund for {goal} has not reached my account.",
            "I cancelled {goal} {when} and was promised my money back.",
        ),
        ("Where is my refund?", "When will it show up?", "Can you check if it came in?"),
    ),
    "debit_stop": (
        (
            "I left the gym {when} and they still collect money every month.",
            "I paid off {goal} {when} and want no more direct debits for it.",
            "{kin} moved out {when} so I should not pay the bill any more.",
            "A direct debit to {shop} is still running although I gave notice {when}.",
        ),
        ("How do I stop it?", "Please end it for me.", "Can you cancel the order?"),
    ),
    "exchange_rate": (
        (
            "I paid at {shop} in {place} {when} and the rate looks odd.",
            "I am off to {place} with {kin} and wonder what rate you use.",
            "The amount for my hotel in {place} is more than I worked out {when}.",
            "I changed money for {place} {when} and got less than the app said.",
        ),
        ("How is the rate worked out?", "Which exchange rate applies?", "Do you add something on top?"),
    ),
    "limit_raise": (
        (
            "I want to pay for {goal} and it is above my limit.",
            "I could not take out enough cash {when} for {goal}.",
            "My daily limit is too low for {goal}.",
            "I am off to {place} and {kin} says I may need a higher card limit.",
        ),
        ("Can you raise it?", "How can I lift the limit?", "I would need more for one day."),
    ),
    "account_close": (
        (
            "I am moving to {place} and no longer need this account.",
            "I opened an account at another bank {when} and want to leave.",
            "I am not happy with the service since {day} and wish to end my contract.",
            "I have not used the account since {kin} and I went separate ways.",
        ),
        ("How do I close it?", "Please close everything for me.", "What happens to the money that is left?"),
    ),
    "address_change": (
        (
            "I moved in with {kin} {when} and my post goes to the old flat.",
            "We moved to a bigger house {when} and you have our old street.",
            "I have lived in {place} since {day} and want my letters there.",
            "{kin} tells me that your letters still come to my former home.",
        ),
        ("How do I update my address?", "Where can I change it?", "Please tell me what you need."),
    ),
    "statement_request": (
        (
            "{who} needs to see what I earned and spent this spring.",
            "The office in {place} asks for papers about my account.",
            "I need a paper copy of my statement for {goal}.",
            "I was asked {when} to show my last three statements.",
        ),
        ("Where can I download them?", "Can you send me the statements?", "I only find the newest one."),
    ),
    "identity_check": (
        (
            "You asked me {when} to send a photo of my passport.",
            "The app wants me to prove who I am since I came back from {place}.",
            "I uploaded my driving licence {when} and it was not accepted.",
            "I made a video for the identity check {when} and have heard nothing.",
        ),
        ("Why is this needed?", "How does it go on?", "Which documents do you accept?"),
    ),
    "app_login": (
        (
            "The app throws me out each time I open it since {day}.",
            "I got a new phone {when} and the app does not know me.",
            "I forgot my password for the app while I was in {place}.",
            "I cannot log in {where} although it worked {when}.",
        ),
        ("How do I get in again?", "Can you reset my access?", "It only says something went wrong."),
    ),
    "top_up_failed": (
        (
            "I tried to add money {when} and the top up did not work.",
            "My top up from the other card was sent back {when}.",
            "I wanted to load money for {goal} and the app refused it.",
            "The money that {kin} wanted to load on my account {when} never appeared.",
        ),
        ("Why can I not top up?", "What did I do wrong?", "Should I try another card?"),
    ),
    "joint_account": (
        (
            "I would like to share my account with {kin}.",
            "We are saving for {goal} and want one account for both of us.",
            "{kin} and I moved in together {when} and want to put our money together.",
            "I want {kin} to be able to pay from my account in {place}.",
        ),
        ("How do we set it up?", "Can we open one together?", "What do both of us have to sign?"),
    ),
    "savings_interest": (
        (
            "I put money aside for {goal} and no interest came in.",
            "{kin} gets more on savings elsewhere than I do here.",
            "I want to leave money for {goal} with you for some years.",
            "I moved my savings to you {when} because of the rate.",
        ),
        ("What interest do you pay?", "When is the interest paid out?", "Is there an account with a better rate?"),
    ),
}

INTENTS: tuple[str, ...] = tuple(_INTENTS)
"""The labels."""


def customer_message(rng: random.Random) -> tuple[str, str]:
    """A message of 8 to 25 words and its intent; intents are equally likely.

    The intent shows in what happened, which every message tells; some also greet, some also ask.
    """
    intent = rng.choice(INTENTS)
    stories, asks = _INTENTS[intent]
    drawn = {slot: rng.choice(values) for slot, values in _SLOTS.items()}
    story = rng.choice(stories).format(**drawn)
    message = story[0].upper() + story[1:]
    if rng.random() < 0.5:
        message = f"{rng.choice(_OPENINGS)} {message}"
    ask = rng.choice(asks)
    if rng.random() < 0.6 and len(message.split()) + len(ask.split()) <= _MOST_WORDS:
        message = f"{message} {ask}"
    return message, intent
