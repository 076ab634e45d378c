//! The language haystacks are written in, as data: the words and sentences the built-in model was trained on.
//! They are plain English, so other models are asked in them too.

/// What facts are about.
pub const ATTRIBUTES: &[&str] =
    &["vault code", "gate code", "locker number", "badge number", "radio channel", "account key"];

const ADJECTIVES: &str = "amber azure brave brisk bronze calm clever coral crimson curious dapper dusty eager early \
    elder fancy fierce floral frosty gentle gilded golden grand green hasty hidden hollow humble icy indigo ivory \
    jade jolly keen kind lively lone lucky mellow mighty misty modest noble olive pale plain proud quick quiet rapid \
    royal rustic scarlet shy silent silver sleepy solar swift tidy velvet vivid wild young";
const NOUNS: &str = "falcon otter badger raven lynx heron beaver walrus condor gecko ferret marten bison cougar \
    dolphin egret finch gopher hornet ibis jackal kestrel lemur magpie narwhal ocelot parrot quail rabbit salmon \
    tapir urchin viper weasel yak zebra anchor beacon candle drum engine fiddle goblet hammer island jacket kettle \
    lantern mirror needle orchid piano quilt ribbon saddle temple umbrella violin wagon bridge castle harbor meadow \
    tower";
const NAMES: &str = "alice bruno clara dmitri elena felix greta hugo irene jonas karla leo mira nadia oscar paula \
    quentin rosa stefan tessa ulrich vera walter xenia yuri zoe anton bella carlos dora";
const VERBS: &str = "carried cleaned counted delivered described examined exchanged fixed followed found guarded \
    ignored inspected lifted moved noticed ordered packed painted polished praised pushed repaired returned sketched \
    sold studied traded visited watched";
const PLACES: &str = "market station library garden museum cellar kitchen stable workshop square chapel quarry \
    valley pier attic bakery theater clinic school office tunnel cabin orchard depot plaza arena terrace canal forge \
    mill";
const THINGS: &str = "apples barrels books bottles boxes bricks carpets chairs coins crates drawings envelopes flags \
    gloves hats ladders lamps letters maps nails parcels pencils plates ropes shirts spoons stones tickets tools \
    wheels";
const DAYS: &str = "monday tuesday wednesday thursday friday saturday sunday";
const MONTHS: &str = "january february march april may june july august september october november december";

/// How a fact is told. `{A}` is its attribute, `{K}` what it is about, `{V}` its five digits.
pub const FACTS: &[&str] = &[
    "the {A} of the {K} is {V}.",
    "the {K} has the {A} {V}.",
    "note: {A} for {K}: {V}.",
    "remember, the {A} of {K} is {V}.",
];

/// How a fact is asked for; the answer follows after a space.
pub const QUESTIONS: &[&str] = &["question: what is the {A} of the {K}? answer:", "q: {A} of {K}? a:"];

/// Sentences of the haystack. `{ddd}` stands for as many digits.
pub const SENTENCES: &[&str] = &[
    "the {adj} {noun} {verb} the {thing} near the {place}.",
    "{name} {verb} {dd} {thing} at the {place}.",
    "on {day}, {name} saw a {adj} {noun} by the {place}.",
    "in {month} the {place} was {adj} and {adj}.",
    "{name} and {name} {verb} a {adj} {noun}.",
    "the {place} opened at {d} on {day}.",
    "a {noun} from the {place} {verb} the {adj} {thing}.",
    "parcel {ddddd} was sent to the {place} in {month}.",
    "nobody {verb} the {noun} because it was {adj}.",
    "{name} said the {noun} is {adj} but the {noun} is {adj}.",
    "there were {ddd} {thing} in the {place}.",
    "{name} paid {ddd} coins for the {adj} {noun}.",
    "after {day}, the {adj} {noun} left the {place}.",
    "the {thing} of {name} were {adj}.",
    "{name} asked why the {adj} {noun} {verb} the {thing}.",
    "every {day} {name} {verb} {thing} and {thing}.",
    "the road from the {place} to the {place} is {adj}.",
    "{name} wrote a letter about the {noun} in {month}.",
    "invoice {dddd} for the {adj} {thing} is with {name}.",
    "a {adj} {noun} is never a {adj} {noun}.",
    "the {noun} and the {noun} met at the {place} on {day}.",
    "{name} lost the key of the {place}.",
    "the number of {thing} at the {place} is {ddddd}.",
    "the {adj} {noun} of {name} has {dd} {thing}.",
];

/// The words.
#[derive(Debug)]
pub struct Words {
    /// First part of a key.
    pub adjectives: Vec<&'static str>,
    /// Second part of a key.
    pub nouns: Vec<&'static str>,
    slots: Vec<(&'static str, Vec<&'static str>)>,
}

impl Words {
    /// All of them.
    pub fn new() -> Words {
        let list = |s: &'static str| s.split_whitespace().collect::<Vec<_>>();
        let slots = [
            ("adj", ADJECTIVES),
            ("noun", NOUNS),
            ("name", NAMES),
            ("verb", VERBS),
            ("place", PLACES),
            ("thing", THINGS),
            ("day", DAYS),
            ("month", MONTHS),
        ];
        Words {
            adjectives: list(ADJECTIVES),
            nouns: list(NOUNS),
            slots: slots.into_iter().map(|(n, s)| (n, list(s))).collect(),
        }
    }
    /// The words of a slot like `{adj}`.
    pub fn slot(&self, name: &str) -> Option<&[&'static str]> {
        self.slots.iter().find(|(n, _)| *n == name).map(|(_, l)| l.as_slice())
    }
}

impl Default for Words {
    fn default() -> Self {
        Words::new()
    }
}
