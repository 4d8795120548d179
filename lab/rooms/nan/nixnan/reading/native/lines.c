/* Lines of a nixnan log, counted by their bytes; the plain form is PlainCounts in ../counts.py. And its usual lines,
 * taken apart: see below.
 *
 * Lines are equal when all their bytes are. Hashes take a seed that each process draws, so that no log can be
 * made whose lines all fall into one slot.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY (-2)
#define AHEAD 16 /* lines that are looked up together, so that their places in memory are fetched together */

typedef struct {
    int64_t start, length; /* in `bytes` */
    int64_t count;         /* 0: forgotten, and new when it comes again */
} Known;
typedef struct {
    uint64_t hash;
    int64_t number; /* of the line + 1, 0 where empty */
} Slot;
typedef struct {
    int64_t number, at, start, end; /* of the line; in the text: which one, and where */
} New;
typedef struct {
    char *bytes; /* of all lines, one after another */
    int64_t used, room;
    Known *known;
    int64_t count, most; /* lines that are known, and how many there is room for */
    Slot *slots;
    int64_t num_slots;
    New *news; /* of the last text */
    int64_t num_news, most_news;
    uint64_t seed;
} Lines;

static uint64_t mixed(uint64_t hash)
{
    hash *= 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 32;
}

static uint64_t word(const char *text)
{
    uint64_t found;
    memcpy(&found, text, 8);
    return found;
}

/* Four words at a time, none waits for the other; then what is left. */
static uint64_t hash_of(uint64_t seed, const char *text, int64_t length)
{
    uint64_t a = seed ^ (uint64_t)length, b = ~seed, c = seed << 1 | 1, d = seed >> 1, rest = 0;
    for (; length >= 32; text += 32, length -= 32) {
        a = mixed(a ^ word(text)), b = mixed(b ^ word(text + 8));
        c = mixed(c ^ word(text + 16)), d = mixed(d ^ word(text + 24));
    }
    a = mixed(a ^ mixed(b ^ mixed(c ^ mixed(d))));
    for (; length >= 8; text += 8, length -= 8)
        a = mixed(a ^ word(text));
    if (length)
        memcpy(&rest, text, (size_t)length);
    return mixed(a ^ rest);
}

/* Room for `wanted` members of a block, of which there is room for *room. */
static int grow(void **block, int64_t *room, int64_t wanted, size_t size)
{
    if (wanted <= *room)
        return 1;
    int64_t more = *room ? *room : 1024;
    while (more < wanted)
        more *= 2;
    void *larger = realloc(*block, (size_t)more * size);
    if (!larger)
        return 0;
    *block = larger, *room = more;
    return 1;
}

static int room_for_line(Lines *all)
{
    if (all->count < all->most)
        return 1;
    if (!grow((void **)&all->known, &all->most, all->count + 1, sizeof *all->known))
        return 0;
    int64_t num_slots = 4 * all->most;
    Slot *slots = calloc((size_t)num_slots, sizeof *slots);
    if (!slots)
        return all->most = all->count, 0;
    for (int64_t old = 0; old < all->num_slots; old++) {
        if (!all->slots[old].number)
            continue;
        int64_t at = (int64_t)(all->slots[old].hash & (uint64_t)(num_slots - 1));
        while (slots[at].number)
            at = (at + 1) & (num_slots - 1);
        slots[at] = all->slots[old];
    }
    free(all->slots);
    all->slots = slots, all->num_slots = num_slots;
    return 1;
}

/* The line, which is made known if it is not; NULL without memory. */
static Known *known_line(Lines *all, uint64_t hash, const char *line, int64_t length)
{
    int64_t at, number;
    if (!room_for_line(all))
        return NULL;
    at = (int64_t)(hash & (uint64_t)(all->num_slots - 1));
    for (; (number = all->slots[at].number - 1) >= 0; at = (at + 1) & (all->num_slots - 1)) {
        Known *one = all->known + number;
        if (all->slots[at].hash == hash && one->length == length &&
            !memcmp(all->bytes + one->start, line, (size_t)length))
            return one;
    }
    if (!grow((void **)&all->bytes, &all->room, all->used + length, 1))
        return NULL;
    memcpy(all->bytes + all->used, line, (size_t)length);
    all->known[all->count] = (Known){all->used, length, 0};
    all->used += length;
    all->slots[at] = (Slot){hash, ++all->count};
    return all->known + all->count - 1;
}

void lines_free(Lines *all)
{
    if (!all)
        return;
    free(all->bytes), free(all->known), free(all->slots), free(all->news), free(all);
}

Lines *lines_new(uint64_t seed)
{
    Lines *all = calloc(1, sizeof *all);
    if (!all)
        return NULL;
    all->seed = seed;
    if (room_for_line(all) && grow((void **)&all->bytes, &all->room, 1, 1))
        return all;
    lines_free(all);
    return NULL;
}

void lines_clear(Lines *all)
{
    all->count = all->used = 0;
    memset(all->slots, 0, (size_t)all->num_slots * sizeof *all->slots);
}

/* Count the lines of a text, each with its end: how many there are; `lines_news` has the new ones. */
int64_t lines_count(Lines *all, const char *text, int64_t length)
{
    const char *at = text, *end = text + length, *starts[AHEAD], *stops[AHEAD];
    uint64_t hashes[AHEAD];
    int64_t lines = 0;
    all->num_news = 0;
    for (int ahead = AHEAD; ahead == AHEAD;) {
        for (ahead = 0; ahead < AHEAD && at < end; ahead++, at = stops[ahead - 1] + 1) {
            const char *stop = memchr(at, '\n', (size_t)(end - at));
            if (!stop)
                break;
            starts[ahead] = at, stops[ahead] = stop;
            hashes[ahead] = hash_of(all->seed, at, stop - at);
            __builtin_prefetch(all->slots + (hashes[ahead] & (uint64_t)(all->num_slots - 1)));
        }
        for (int i = 0; i < ahead; i++) {
            int64_t number = all->slots[hashes[i] & (uint64_t)(all->num_slots - 1)].number - 1;
            if (number >= 0)
                __builtin_prefetch(all->bytes + all->known[number].start);
        }
        for (int i = 0; i < ahead; i++, lines++) {
            Known *one = known_line(all, hashes[i], starts[i], stops[i] - starts[i]);
            if (!one)
                return NO_MEMORY;
            if (one->count++)
                continue;
            if (!grow((void **)&all->news, &all->most_news, all->num_news + 1, sizeof *all->news))
                return NO_MEMORY;
            all->news[all->num_news++] = (New){one - all->known, lines, starts[i] - text, stops[i] - text};
        }
    }
    return lines;
}

/* The new lines of the last text, in order: four numbers each. */
int64_t lines_news(const Lines *all, const int64_t **news)
{
    *news = (const int64_t *)all->news;
    return all->num_news;
}

int64_t lines_known(const Lines *all) { return all->count; }

/* How often each of the first `most` lines that are known was counted. */
void lines_counts(const Lines *all, int64_t *counts, int64_t most)
{
    for (int64_t number = 0; number < most && number < all->count; number++)
        counts[number] = all->known[number].count;
}

/* The line is new when it comes again. */
void lines_forget(Lines *all, int64_t number)
{
    if (number >= 0 && number < all->count)
        all->known[number].count = 0;
}

/* The usual error lines of a text, taken apart; the plain form is Scanner in ../bulk/scanner.py. */

#define HEAD "#nixnan: error ["
#define PREFIX "#nixnan"
#define DETECTED "] detected in operand " /* a digit follows */
#define INSTRUCTION " of instruction "
#define FUNCTION "; in function "
#define OF_TYPE " of type "
#define LENGTH(text) ((int64_t)sizeof(text) - 1)
#define IS(place, text) (!memcmp(place, text, sizeof(text) - 1))
#define LEAST_LINE 61
#define MOST_OPERAND '7'
#define MOST_DIGITS 9

/* In the order of Usual in ../bulk/scanner.py. */
enum {
    KINDS, OPERAND, LABEL, SASS_START, SASS_END, NAME_START, NAME_END, NAME_HASH, SASS_HASH, OPCODE_HASH, NUM_COLUMNS
};

typedef struct {
    char text[32];
    int64_t length;
} Word;
typedef struct {
    const Word *kinds, *labels;
    int64_t num_kinds, num_labels;
    uint64_t turns[4]; /* the multipliers of ../bulk/hashing.py */
} Words;

static uint64_t folded(uint64_t number) { return number ^ number >> 29; }

/* span_hashes of ../bulk/hashing.py. Seven bytes past the end are read. */
static uint64_t span_hash(const Words *words, const char *text, int64_t length)
{
    uint64_t hash = (uint64_t)length, place = 0;
    for (; length > 0; text += 8, length -= 8) {
        uint64_t now = word(text);
        if (length < 8)
            now &= ((uint64_t)1 << 8 * length) - 1;
        place = place * words->turns[2] + words->turns[2];
        hash += folded(folded(now) * words->turns[0]) * (place | 1);
    }
    return folded(folded(hash) * words->turns[1]);
}

/* opcode_hashes there, of one word, which a blank ends. */
static uint64_t opcode_hash(const Words *words, const char *text)
{
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    uint64_t hash = words->turns[3], now, differ, blank;
    for (;; text += 8) {
        now = word(text);
        differ = now ^ 0x2020202020202020u;
        blank = (differ - ones) & ~differ & tops;
        blank &= ~blank + 1;
        hash = folded(((now & ((blank >> 7) - 1)) ^ hash) * words->turns[1]);
        if (blank)
            return hash;
    }
}

static int64_t index_of(const Word *all, int64_t count, int64_t guess, const char *text, int64_t length)
{
    if (guess < count && all[guess].length == length && !memcmp(all[guess].text, text, (size_t)length))
        return guess;
    for (int64_t one = 0; one < count; one++)
        if (all[one].length == length && !memcmp(all[one].text, text, (size_t)length))
            return one;
    return -1;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* Where the function's name ends: before ` at path:17` or ` at line 17`, which the type may follow; NULL: unclear. */
static const char *name_end(const char *name, const char *type)
{
    const char *at = name, *back = type - 1;
    while (at < type && (at = memchr(at, ' ', (size_t)(type - at))) && !IS(at, " at "))
        at++;
    if (!at || at >= type)
        return type;
    for (int digits = 0; digits < MOST_DIGITS && is_digit(*back); digits++)
        back--;
    if (back == type - 1)
        return NULL;
    if (*back == ':' && at[4] != ' ' && back > at + 4)
        return at;
    return IS(at, " at line") && back == at + 8 ? at : NULL;
}

/* One line, from its first byte to its end; 0: not usual. last: the kinds and label of the line before. */
static int usual(const Words *words, const char *text, const char *line, const char *end, int64_t *row,
                 const int64_t *last)
{
    const char *kinds = line + LENGTH(HEAD), *bracket, *sass, *semicolon, *name, *type, *stop;
    if (end - line < LEAST_LINE || !IS(line, HEAD) || !(bracket = memchr(kinds, ']', (size_t)(end - kinds))))
        return 0;
    sass = bracket + LENGTH(DETECTED) + 1 + LENGTH(INSTRUCTION);
    if (sass + 2 > end || !IS(bracket, DETECTED) || !IS(sass - LENGTH(INSTRUCTION), INSTRUCTION))
        return 0;
    row[OPERAND] = bracket[LENGTH(DETECTED)] - '0';
    if (row[OPERAND] < 0 || row[OPERAND] > MOST_OPERAND - '0')
        return 0;
    if (!(semicolon = memchr(sass, ';', (size_t)(end - sass))) || semicolon < sass + 2 || semicolon[-1] != ' ')
        return 0;
    name = semicolon + LENGTH(FUNCTION);
    if (name > end || !IS(semicolon, FUNCTION) || memchr(name, ';', (size_t)(end - name)) ||
        memchr(name, ']', (size_t)(end - name)))
        return 0;
    for (type = end; type > name && type[-1] != ' ';)
        type--;
    if ((row[LABEL] = index_of(words->labels, words->num_labels, last[LABEL], type, end - type)) < 0)
        return 0;
    type -= LENGTH(OF_TYPE);
    if (type < name || !IS(type, OF_TYPE))
        return 0;
    if ((row[KINDS] = index_of(words->kinds, words->num_kinds, last[KINDS], kinds, bracket - kinds)) < 0)
        return 0;
    if (!(type = name_end(name, type)))
        return 0;
    for (stop = semicolon - 1; stop > sass && stop[-1] == ' ';)
        stop--;
    const char *opcode = sass;
    if (*sass == '@' && (opcode = memchr(sass, ' ', (size_t)(stop - sass))))
        opcode++;
    if (stop == sass || !opcode || *opcode == ' ')
        return 0;
    row[SASS_START] = sass - text, row[SASS_END] = stop - text;
    row[NAME_START] = name - text, row[NAME_END] = type - text;
    row[NAME_HASH] = (int64_t)span_hash(words, name, type - name);
    row[SASS_HASH] = (int64_t)span_hash(words, sass, stop - sass);
    row[OPCODE_HASH] = (int64_t)opcode_hash(words, opcode);
    return 1;
}

/* How often the prefix stands in a line. */
static int64_t prefixes(const char *line, const char *end)
{
    int64_t found = 0;
    for (; end - line >= LENGTH(PREFIX) && (line = memchr(line, '#', (size_t)(end - line))); line++)
        found += end - line >= LENGTH(PREFIX) && IS(line, PREFIX);
    return found;
}

int64_t usual_columns(void) { return NUM_COLUMNS; }

/* The usual lines of a text, each of which ends with a line's end: a row of NUM_COLUMNS numbers each, with room for
 * one in LEAST_LINE + 1 bytes, and the numbers of the other lines, with room for `most`.
 * Returns how many lines are usual; -1 for a text to be read line by line: some line holds nixnan's prefix twice, or
 * not at its start. */
int64_t usual_lines(const Words *words, const char *text, int64_t length, int64_t *rows, int64_t *others, int64_t most,
                    int64_t *num_others)
{
    static const int64_t NO_LINE[NUM_COLUMNS];
    const char *at = text, *stop, *end = text + length;
    const int64_t *last = NO_LINE;
    int64_t count = 0, odd = 0, ours = 0, all = 0;
    for (; at < end && (stop = memchr(at, '\n', (size_t)(end - at))); at = stop + 1) {
        if (odd == most)
            return NO_MEMORY;
        ours += stop - at >= LENGTH(PREFIX) + 1 && IS(at, PREFIX ":");
        all += prefixes(at, stop);
        int64_t *row = rows + count * NUM_COLUMNS;
        if (usual(words, text, at, stop, row, last))
            last = row, count++;
        else
            others[odd] = count + odd, odd++;
    }
    *num_others = odd;
    return all == ours ? count : -1;
}
