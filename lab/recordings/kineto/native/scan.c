/* Events of a Kineto trace -> one row of 64-bit numbers each; the plain form is ../decode.py and ../events.py.
 *
 * scan() takes the text of whole events and is strict: RFC 8259, and the types that events.py names. Whatever
 * it does not know to be right (another type, an exponent, more than three decimals, a duplicate list of
 * arguments, a surrogate) makes it return ODD, and the caller reads the same text in the plain form, which
 * also makes every error's words. Texts and lists are numbered: equal bytes, equal number.
 *
 * The text must end with a NUL after its last byte, as bytes of CPython do: no mark of JSON is a NUL, so every
 * loop ends there.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ODD (-1)
#define NO_MEMORY (-2)
#define MISSING INT64_MIN
#define MOST_DEPTH 64

/* Columns of a row, in the order of COLUMNS in scanner.py. */
enum {
    PH, PID, TID, TS_NS, DUR_NS, NAME, CAT, ID, START, END, MARKS,
    EXTERNAL_ID, SEQUENCE, RF_ID, DEVICE, STREAM, ORIGINAL_STREAM, KERNEL, CORRELATION, GRAPH, GRAPH_NODE, REGS,
    SMEM_BYTES, BYTES, COPY_KIND, SRC_KIND, DST_KIND, GRID_X, GRID_Y, GRID_Z, BLOCK_X, BLOCK_Y, BLOCK_Z,
    COLLECTIVE, IN_NELEMS, OUT_NELEMS, GROUP_SIZE, DTYPE, IN_SPLIT, OUT_SPLIT, PG_NAME, PG_DESC, PG_RANKS, SEQ,
    CONCRETE, TYPES, STRIDES, DIMS, EV_IDX, NUM_COLUMNS
};
enum {
    PID_TEXT = 1, TID_TEXT = 2, DEVICE_TEXT = 4, STREAM_TEXT = 8, ORIGINAL_STREAM_TEXT = 16, BYTES_TEXT = 32,
    EV_IDX_TEXT = 64, HAS_GRID = 128, HAS_ARGS = 256
};
enum { OTHER, SLICE, META, ARROW_START, ARROW_END };

typedef enum { INT, INT_OR_TEXT, TEXT, RAW, SIZES, TIME, DUR, PHASE, ARROW, ARGS } Kind;
typedef struct {
    const char *key;
    uint8_t length;
    uint8_t column;
    uint8_t kind;
    uint16_t mark;
} Field;
#define FIELD(key, column, kind, mark) {key, sizeof(key) - 1, column, kind, mark}

static const Field EVENT_FIELDS[] = {
    FIELD("ph", PH, PHASE, 0), FIELD("cat", CAT, TEXT, 0), FIELD("name", NAME, TEXT, 0),
    FIELD("pid", PID, INT_OR_TEXT, PID_TEXT), FIELD("tid", TID, INT_OR_TEXT, TID_TEXT),
    FIELD("ts", TS_NS, TIME, 0), FIELD("dur", DUR_NS, DUR, 0), FIELD("args", MARKS, ARGS, HAS_ARGS),
    FIELD("id", ID, ARROW, 0),
};
static const Field ARGS_FIELDS[] = {
    FIELD("External id", EXTERNAL_ID, INT, 0), FIELD("Sequence number", SEQUENCE, INT, 0),
    FIELD("Record function id", RF_ID, INT, 0), FIELD("device", DEVICE, INT_OR_TEXT, DEVICE_TEXT),
    FIELD("stream", STREAM, INT_OR_TEXT, STREAM_TEXT),
    FIELD("original_stream", ORIGINAL_STREAM, INT_OR_TEXT, ORIGINAL_STREAM_TEXT), FIELD("kernel", KERNEL, TEXT, 0),
    FIELD("correlation", CORRELATION, INT, 0), FIELD("graph id", GRAPH, INT, 0),
    FIELD("graph node id", GRAPH_NODE, INT, 0), FIELD("registers per thread", REGS, INT, 0),
    FIELD("shared memory", SMEM_BYTES, INT, 0), FIELD("bytes", BYTES, INT_OR_TEXT, BYTES_TEXT),
    FIELD("copy kind", COPY_KIND, TEXT, 0), FIELD("src kind", SRC_KIND, TEXT, 0),
    FIELD("dst kind", DST_KIND, TEXT, 0), FIELD("grid", GRID_X, SIZES, HAS_GRID),
    FIELD("block", BLOCK_X, SIZES, 0), FIELD("Collective name", COLLECTIVE, TEXT, 0),
    FIELD("In msg nelems", IN_NELEMS, INT, 0), FIELD("Out msg nelems", OUT_NELEMS, INT, 0),
    FIELD("Group size", GROUP_SIZE, INT, 0), FIELD("dtype", DTYPE, TEXT, 0),
    FIELD("In split size", IN_SPLIT, RAW, 0), FIELD("Out split size", OUT_SPLIT, RAW, 0),
    FIELD("Process Group Name", PG_NAME, TEXT, 0), FIELD("Process Group Description", PG_DESC, TEXT, 0),
    FIELD("Process Group Ranks", PG_RANKS, TEXT, 0), FIELD("Seq", SEQ, INT, 0),
    FIELD("Concrete Inputs", CONCRETE, RAW, 0), FIELD("Input type", TYPES, RAW, 0),
    FIELD("Input Strides", STRIDES, RAW, 0), FIELD("Input Dims", DIMS, RAW, 0),
    FIELD("Ev Idx", EV_IDX, INT_OR_TEXT, EV_IDX_TEXT),
};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))
static const int64_t DEFAULTS[NUM_COLUMNS] = {
    [PH] = OTHER, [PID] = -1, [TID] = -1, [TS_NS] = MISSING, [DUR_NS] = MISSING, [NAME] = -1, [CAT] = -1,
    [ID] = -1, [EXTERNAL_ID] = -1, [SEQUENCE] = -1, [RF_ID] = -1, [DEVICE] = -1, [STREAM] = -1,
    [ORIGINAL_STREAM] = -1, [KERNEL] = -1, [CORRELATION] = -1, [GRAPH] = 0, [GRAPH_NODE] = 0, [REGS] = -1,
    [SMEM_BYTES] = -1, [BYTES] = -1, [COPY_KIND] = -1, [SRC_KIND] = -1, [DST_KIND] = -1, [GRID_X] = -1,
    [GRID_Y] = -1, [GRID_Z] = -1, [BLOCK_X] = -1, [BLOCK_Y] = -1, [BLOCK_Z] = -1, [COLLECTIVE] = -1,
    [IN_NELEMS] = -1, [OUT_NELEMS] = -1, [GROUP_SIZE] = -1, [DTYPE] = -1, [IN_SPLIT] = -1, [OUT_SPLIT] = -1,
    [PG_NAME] = -1, [PG_DESC] = -1, [PG_RANKS] = -1, [SEQ] = -1, [CONCRETE] = -1, [TYPES] = -1, [STRIDES] = -1,
    [DIMS] = -1, [EV_IDX] = -1,
};

/* Distinct byte strings, numbered from 0 in the order in which they were first seen. */
typedef struct {
    char *bytes;
    int64_t used, room;
    int64_t *ends; /* of each string in `bytes` */
    uint64_t *hashes;
    int64_t count, most;
    int64_t *slots; /* number + 1, 0 where empty */
    int64_t num_slots;
} Numbered;

typedef struct {
    Numbered texts, raws;
    const char *at, *begin;
    int64_t *row;
    int failed;
    uint8_t next_event[COUNT(EVENT_FIELDS) + 1], next_args[COUNT(ARGS_FIELDS) + 1];
} State;

static uint64_t hash_of(const char *text, int64_t length)
{
    uint64_t hash = 0x9E3779B97F4A7C15u ^ (uint64_t)length, part;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&part, text, 8);
        hash = (hash ^ part) * 0xD6E8FEB86659FD93u;
        hash ^= hash >> 32;
    }
    part = 0;
    if (length)
        memcpy(&part, text, (size_t)length);
    hash = (hash ^ part) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 29;
}

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

static int rehash(Numbered *all)
{
    int64_t slots = all->num_slots ? 2 * all->num_slots : 4096;
    int64_t *fresh = calloc((size_t)slots, sizeof *fresh);
    if (!fresh)
        return 0;
    for (int64_t i = 0; i < all->count; i++) {
        int64_t at = (int64_t)(all->hashes[i] & (uint64_t)(slots - 1));
        while (fresh[at])
            at = (at + 1) & (slots - 1);
        fresh[at] = i + 1;
    }
    free(all->slots);
    all->slots = fresh, all->num_slots = slots;
    return 1;
}

/* The number of a string; -2 without memory. */
static int64_t number_of(Numbered *all, const char *text, int64_t length)
{
    if (2 * all->count >= all->num_slots && !rehash(all))
        return -2;
    uint64_t hash = hash_of(text, length);
    int64_t at = (int64_t)(hash & (uint64_t)(all->num_slots - 1));
    for (; all->slots[at]; at = (at + 1) & (all->num_slots - 1)) {
        int64_t i = all->slots[at] - 1, start = i ? all->ends[i - 1] : 0;
        if (all->hashes[i] == hash && all->ends[i] - start == length
            && !memcmp(all->bytes + start, text, (size_t)length))
            return i;
    }
    int64_t most = all->most;
    if (!grow((void **)&all->bytes, &all->room, all->used + length, 1)
        || !grow((void **)&all->ends, &most, all->count + 1, sizeof *all->ends)
        || !grow((void **)&all->hashes, &all->most, all->count + 1, sizeof *all->hashes))
        return -2;
    memcpy(all->bytes + all->used, text, (size_t)length);
    all->used += length;
    all->ends[all->count] = all->used;
    all->hashes[all->count] = hash;
    all->slots[at] = ++all->count;
    return all->count - 1;
}

static int fail(State *s, int why)
{
    s->failed = why;
    return 0;
}

static void space(State *s)
{
    while (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r')
        s->at++;
}

static int is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Past a string; its bytes between the quotes are [*start, *start + *length). */
static int string(State *s, const char **start, int64_t *length)
{
    const unsigned char *p = (const unsigned char *)s->at;
    if (*p++ != '"')
        return fail(s, ODD);
    *start = (const char *)p;
    for (;; p++) {
        while (*p >= 0x20 && *p != '"' && *p != '\\')
            p++;
        if (*p == '"')
            break;
        if (*p != '\\')
            return fail(s, ODD); /* a control character, or the end of the text */
        p++;
        if (*p == 'u') {
            for (int i = 1; i <= 4; i++)
                if (!is_hex((char)p[i]))
                    return fail(s, ODD);
            if ((p[1] == 'd' || p[1] == 'D') && p[2] >= '8')
                return fail(s, ODD); /* half of a pair: left to the plain form */
            p += 4;
        } else if (!*p || !strchr("\"\\/bfnrt", *p))
            return fail(s, ODD);
    }
    *length = (const char *)p - *start;
    s->at = (const char *)p + 1;
    return 1;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Past any number of JSON. */
static int number(State *s)
{
    const char *p = s->at;
    p += *p == '-';
    if (*p == '0')
        p++;
    else if (is_digit(*p))
        while (is_digit(*p))
            p++;
    else
        return fail(s, ODD);
    if (*p == '.') {
        if (!is_digit(*++p))
            return fail(s, ODD);
        while (is_digit(*p))
            p++;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '+' || *p == '-';
        if (!is_digit(*p))
            return fail(s, ODD);
        while (is_digit(*p))
            p++;
    }
    s->at = p;
    return 1;
}

/* A whole number of at most 18 digits. */
static int integer(State *s, int64_t *value)
{
    const char *p = s->at;
    int negative = *p == '-';
    p += negative;
    const char *first = p;
    int64_t found = 0;
    while (is_digit(*p) && p - first < 18)
        found = 10 * found + (*p++ - '0');
    int64_t digits = p - first;
    if (!digits || (digits > 1 && *first == '0') || is_digit(*p) || *p == '.' || *p == 'e' || *p == 'E')
        return fail(s, ODD);
    *value = negative ? -found : found;
    s->at = p;
    return 1;
}

/* Microseconds with at most three decimals, not negative and below 10^15, as nanoseconds. */
static int time_ns(State *s, int64_t *ns)
{
    const char *p = s->at, *first = p;
    int64_t found = 0;
    while (is_digit(*p) && p - first < 15)
        found = 10 * found + (*p++ - '0');
    if (p == first || is_digit(*p) || (p - first > 1 && *first == '0'))
        return fail(s, ODD);
    found *= 1000;
    if (*p == '.') {
        const char *point = p++;
        for (int64_t unit = 100; is_digit(*p) && unit; unit /= 10)
            found += unit * (*p++ - '0');
        if (p == point + 1)
            return fail(s, ODD);
    }
    if (is_digit(*p) || *p == 'e' || *p == 'E' || *p == '.')
        return fail(s, ODD);
    *ns = found;
    s->at = p;
    return 1;
}

static int literal(State *s, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(s->at, word, length))
        return fail(s, ODD);
    s->at += length;
    return 1;
}

static int value(State *s, int depth);

/* Past a list or an object, from its bracket on. */
static int nested(State *s, char close, int depth)
{
    const char *text;
    int64_t length;
    if (depth >= MOST_DEPTH)
        return fail(s, ODD);
    s->at++;
    space(s);
    if (*s->at == close)
        return s->at++, 1;
    for (;;) {
        if (close == '}') {
            if (!string(s, &text, &length))
                return 0;
            space(s);
            if (*s->at != ':')
                return fail(s, ODD);
            s->at++;
            space(s);
        }
        if (!value(s, depth + 1))
            return 0;
        space(s);
        if (*s->at == close)
            return s->at++, 1;
        if (*s->at != ',')
            return fail(s, ODD);
        s->at++;
        space(s);
    }
}

/* Past any value. */
static int value(State *s, int depth)
{
    const char *text;
    int64_t length;
    switch (*s->at) {
    case '"': return string(s, &text, &length);
    case '{': return nested(s, '}', depth);
    case '[': return nested(s, ']', depth);
    case 't': return literal(s, "true");
    case 'f': return literal(s, "false");
    case 'n': return literal(s, "null");
    default: return number(s);
    }
}

static int numbered(State *s, Numbered *all, const char *text, int64_t length, int64_t *into)
{
    *into = length ? number_of(all, text, length) : -1;
    return *into == -2 ? fail(s, NO_MEMORY) : 1;
}

static int text_value(State *s, int64_t *into)
{
    const char *text;
    int64_t length;
    return string(s, &text, &length) && numbered(s, &s->texts, text, length, into);
}

static int sizes(State *s, int64_t *into)
{
    if (*s->at != '[')
        return fail(s, ODD);
    for (int i = 0; i < 3; i++) {
        s->at++;
        space(s);
        if (!integer(s, &into[i]))
            return 0;
        space(s);
        if (*s->at != (i < 2 ? ',' : ']'))
            return fail(s, ODD);
    }
    s->at++;
    return 1;
}

static int phase(State *s, int64_t *into)
{
    const char *text;
    int64_t length;
    if (!string(s, &text, &length))
        return 0;
    *into = OTHER;
    if (length == 1)
        *into = *text == 'X' ? SLICE : *text == 'M' ? META : *text == 's' ? ARROW_START
              : *text == 'f' ? ARROW_END : OTHER;
    return !memchr(text, '\\', (size_t)length) || fail(s, ODD);
}

/* The number of an arrow: 1 to 18 digits, in quotes or not; -1 for any other value (flow_number in ../columns.py). */
static int arrow(State *s, int64_t *into)
{
    const char *start = s->at, *end;
    if (!value(s, 0))
        return 0;
    end = s->at;
    while (start < end && *start == '"')
        start++;
    while (end > start && end[-1] == '"')
        end--;
    *into = end > start && end - start <= 18 ? 0 : -1;
    for (; start < end && *into >= 0; start++)
        *into = is_digit(*start) ? 10 * *into + (*start - '0') : -1;
    return 1;
}

static int fields(State *s, const Field *known, int count, uint8_t *next);

static int field_value(State *s, const Field *field)
{
    int64_t *into = &s->row[field->column], *marks = &s->row[MARKS];
    const char *start = s->at;
    switch ((Kind)field->kind) {
    case INT: return integer(s, into);
    case INT_OR_TEXT:
        if (*s->at != '"') {
            *marks &= ~(int64_t)field->mark;
            return integer(s, into);
        }
        *marks |= field->mark;
        return text_value(s, into);
    case TEXT: return text_value(s, into);
    case RAW: return value(s, 0) && numbered(s, &s->raws, start, s->at - start, into);
    case SIZES: *marks |= field->mark; return sizes(s, into);
    case TIME:
    case DUR: return time_ns(s, into);
    case PHASE: return phase(s, into);
    case ARROW: return arrow(s, into);
    case ARGS:
        if (*marks & HAS_ARGS || *s->at != '{')
            return fail(s, ODD);
        *marks |= HAS_ARGS;
        return fields(s, ARGS_FIELDS, COUNT(ARGS_FIELDS), s->next_args);
    }
    return fail(s, ODD);
}

static int find(const Field *known, int count, const char *key, int64_t length)
{
    for (int i = 0; i < count; i++)
        if (known[i].length == length && known[i].key[0] == *key && !memcmp(known[i].key, key, (size_t)length))
            return i;
    return count;
}

/* An object of known fields; next[i] is the field that followed field i the last time, which saves a search. */
static int fields(State *s, const Field *known, int count, uint8_t *next)
{
    const char *key;
    int64_t length;
    int before = count;
    s->at++;
    space(s);
    if (*s->at == '}')
        return s->at++, 1;
    for (;;) {
        if (!string(s, &key, &length))
            return 0;
        if (memchr(key, '\\', (size_t)length))
            return fail(s, ODD);
        space(s);
        if (*s->at != ':')
            return fail(s, ODD);
        s->at++;
        space(s);
        int guess = next[before];
        int which = guess < count && known[guess].length == length && !memcmp(known[guess].key, key, (size_t)length)
                  ? guess : find(known, count, key, length);
        if (which < count) {
            next[before] = (uint8_t)which;
            before = which;
            if (!field_value(s, &known[which]))
                return 0;
        } else if (!value(s, 0))
            return 0;
        space(s);
        if (*s->at == '}')
            return s->at++, 1;
        if (*s->at != ',')
            return fail(s, ODD);
        s->at++;
        space(s);
    }
}

State *scan_new(void)
{
    State *s = calloc(1, sizeof *s);
    return s;
}

static void release(Numbered *all)
{
    free(all->bytes), free(all->ends), free(all->hashes), free(all->slots);
}

void scan_free(State *s)
{
    if (s)
        release(&s->texts), release(&s->raws), free(s);
}

/* Number of columns, for the caller to check. */
int64_t scan_columns(void)
{
    return NUM_COLUMNS;
}

/* Rows of the events in text (length bytes and a NUL), at most `most`; their number, ODD or NO_MEMORY. */
int64_t scan(State *s, const char *text, int64_t length, int64_t *rows, int64_t most)
{
    s->at = s->begin = text, s->failed = 0;
    int64_t n = 0;
    for (;;) {
        space(s);
        if (*s->at != '{' || n == most)
            return ODD;
        s->row = rows + n * NUM_COLUMNS;
        memcpy(s->row, DEFAULTS, sizeof DEFAULTS);
        s->row[START] = s->at - text;
        if (!fields(s, EVENT_FIELDS, COUNT(EVENT_FIELDS), s->next_event))
            return s->failed;
        s->row[END] = s->at - text;
        n++;
        space(s);
        if (s->at == text + length)
            return n;
        if (*s->at != ',')
            return ODD;
        s->at++;
    }
}

/* The distinct texts (which 0) or lists (1): how many, their bytes one after the other, where each ends. */
int64_t scan_distinct(const State *s, int which, const char **bytes, const int64_t **ends)
{
    const Numbered *all = which ? &s->raws : &s->texts;
    *bytes = all->bytes, *ends = all->ends;
    return all->count;
}
