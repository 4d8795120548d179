/* Events of a Kineto trace -> columns of 64-bit numbers by table; the plain form is ../decode.py, ../events.py and
 * the tables of ../columns.py.
 *
 * scan() takes the text of whole events and is strict: RFC 8259, and the types that events.py names. Whatever
 * it does not know to be right (another type, an exponent, more than three decimals, a duplicate list of
 * arguments, a surrogate) makes it return ODD, and the caller reads the same text in the plain form, which
 * also makes every error's words. Texts and lists are numbered: equal bytes, equal number.
 *
 * A profiler repeats itself, and what was found right once is right again: the marks, spaces and key between two
 * values (Link), a list and a name are first compared with those that followed here the last time.
 *
 * The text must end with a NUL after its last byte, as bytes of CPython do: no mark of JSON is a NUL, so every
 * loop ends there.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ODD (-1)
#define NO_MEMORY (-2)
#define NO_ROOM (-3)
#define MISSING INT64_MIN
#define MOST_DEPTH 64
#define LONGEST_NS (INT64_C(1000) << 43) /* of a duration, as in ../values.py */

/* Columns of a row, in the order of COLUMNS in scanner.py. */
enum {
    PH, PID, TID, TS_NS, DUR_NS, NAME, CAT, ID, START, STOP, ROW, MARKS,
    EXTERNAL_ID, SEQUENCE, RF_ID, DEVICE, STREAM, ORIGINAL_STREAM, KERNEL, CORRELATION, GRAPH, GRAPH_NODE, REGS,
    SMEM_BYTES, BYTES, COPY_KIND, SRC_KIND, DST_KIND, GRID_X, GRID_Y, GRID_Z, BLOCK_X, BLOCK_Y, BLOCK_Z,
    COLLECTIVE, IN_NELEMS, OUT_NELEMS, GROUP_SIZE, DTYPE, IN_SPLIT, OUT_SPLIT, PG_NAME, PG_DESC, PG_RANKS, SEQ,
    DST_RANK, SRC_RANK, GROUP_RANK, CONCRETE, TYPES, STRIDES, DIMS, EV_IDX, NUM_COLUMNS
};
enum {
    PID_TEXT = 1, TID_TEXT = 2, DEVICE_TEXT = 4, STREAM_TEXT = 8, ORIGINAL_STREAM_TEXT = 16, BYTES_TEXT = 32,
    EV_IDX_TEXT = 64, HAS_GRID = 128, HAS_ARGS = 256
};
enum { OTHER, SLICE, META, ARROW_START, ARROW_END };

/* What the events of a category become (TABLE_OF in ../columns.py); UNSURE: only the plain form can say. */
typedef enum { FOREIGN, NAMES, FLOWS, KERNELS, OPS, RUNTIME, RANGES, FUNCTIONS, WAITS, UNSURE } Category;
static const struct { const char *text; Category category; } CATEGORIES[] = {
    {"kernel", KERNELS}, {"gpu_memcpy", KERNELS}, {"memcpy", KERNELS}, {"gpu_memset", KERNELS},
    {"memset", KERNELS}, {"cuda_runtime", RUNTIME}, {"cuda_driver", RUNTIME}, {"hip_runtime", RUNTIME},
    {"runtime", RUNTIME}, {"user_annotation", RANGES}, {"gpu_user_annotation", RANGES}, {"cpu_op", OPS},
    {"operator", OPS}, {"fwdbwd", FLOWS}, {"python_function", FUNCTIONS}, {"cuda_sync", WAITS},
};
static const char MODULE[] = "nn.Module: "; /* before a module's name, as in lab.recordings.tables */

/* The tables of a piece, in the order of TABLES in scanner.py, and the columns of each. Of other columns nothing
 * is kept. ..._COMMS are the rows that describe a collective, LAUNCHES the calls with a grid, COPIES the kernels
 * with a kind of copy, ..._INDICES the profiler's numbers of operators and ranges, and of other events, FOREIGN the
 * slices of categories that nothing reads. */
enum {
    T_KERNELS, T_OPS, T_RUNTIME, T_RANGES, T_MODULES, T_ARROWS, T_KERNEL_COMMS, T_OP_COMMS, T_LAUNCHES,
    T_COPIES, T_OPERATOR_INDICES, T_OTHER_INDICES, T_META, T_WAITS, T_FOREIGN, NUM_TABLES
};
#define MOST_COLUMNS 32
#define SLICES TS_NS, DUR_NS, PID, TID, NAME, MARKS
#define SIZES_OF GRID_X, GRID_Y, GRID_Z, BLOCK_X, BLOCK_Y, BLOCK_Z, SMEM_BYTES
#define COMMS ROW, COLLECTIVE, IN_NELEMS, OUT_NELEMS, GROUP_SIZE, DTYPE, IN_SPLIT, OUT_SPLIT, PG_NAME, PG_DESC, \
              PG_RANKS, SEQ, DST_RANK, SRC_RANK, GROUP_RANK
static const struct { int count; uint8_t columns[MOST_COLUMNS]; } TABLES[NUM_TABLES] = {
    [T_KERNELS] = {23, {SLICES, CAT, DEVICE, STREAM, ORIGINAL_STREAM, CORRELATION, EXTERNAL_ID, BYTES, REGS, GRAPH,
                        GRAPH_NODE, SIZES_OF}},
    [T_OPS] = {13, {SLICES, EXTERNAL_ID, RF_ID, SEQUENCE, DIMS, TYPES, STRIDES, CONCRETE}},
    [T_RUNTIME] = {9, {SLICES, CORRELATION, EXTERNAL_ID, KERNEL}},
    [T_RANGES] = {9, {SLICES, CAT, DIMS, TYPES}},
    [T_MODULES] = {6, {SLICES}},
    [T_ARROWS] = {6, {TS_NS, PID, TID, MARKS, ID, PH}},
    [T_KERNEL_COMMS] = {15, {COMMS}},
    [T_OP_COMMS] = {15, {COMMS}},
    [T_LAUNCHES] = {8, {CORRELATION, SIZES_OF}},
    [T_COPIES] = {4, {ROW, COPY_KIND, SRC_KIND, DST_KIND}},
    [T_OPERATOR_INDICES] = {1, {EV_IDX}},
    [T_OTHER_INDICES] = {1, {EV_IDX}},
    [T_META] = {2, {START, STOP}},
    [T_WAITS] = {2, {START, STOP}},
    [T_FOREIGN] = {1, {CAT}},
};

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
    FIELD("Dst Rank", DST_RANK, INT, 0), FIELD("Src Rank", SRC_RANK, INT, 0), FIELD("Rank", GROUP_RANK, INT, 0),
    FIELD("Concrete Inputs", CONCRETE, RAW, 0), FIELD("Input type", TYPES, RAW, 0),
    FIELD("Input Strides", STRIDES, RAW, 0), FIELD("Input Dims", DIMS, RAW, 0),
    FIELD("Ev Idx", EV_IDX, INT_OR_TEXT, EV_IDX_TEXT),
};
#define COUNT(list) (sizeof(list) / sizeof *(list))
static const int64_t DEFAULTS[NUM_COLUMNS] = {
    [PH] = OTHER, [PID] = -1, [TID] = -1, [TS_NS] = MISSING, [DUR_NS] = MISSING, [NAME] = -1, [CAT] = -1,
    [ID] = -1, [EXTERNAL_ID] = -1, [SEQUENCE] = -1, [RF_ID] = -1, [DEVICE] = -1, [STREAM] = -1,
    [ORIGINAL_STREAM] = -1, [KERNEL] = -1, [CORRELATION] = -1, [GRAPH] = 0, [GRAPH_NODE] = 0, [REGS] = -1,
    [SMEM_BYTES] = -1, [BYTES] = -1, [COPY_KIND] = -1, [SRC_KIND] = -1, [DST_KIND] = -1, [GRID_X] = -1,
    [GRID_Y] = -1, [GRID_Z] = -1, [BLOCK_X] = -1, [BLOCK_Y] = -1, [BLOCK_Z] = -1, [COLLECTIVE] = -1,
    [IN_NELEMS] = -1, [OUT_NELEMS] = -1, [GROUP_SIZE] = -1, [DTYPE] = -1, [IN_SPLIT] = -1, [OUT_SPLIT] = -1,
    [PG_NAME] = -1, [PG_DESC] = -1, [PG_RANKS] = -1, [SEQ] = -1, [DST_RANK] = -1, [SRC_RANK] = -1, [GROUP_RANK] = -1,
    [CONCRETE] = -1, [TYPES] = -1, [STRIDES] = -1, [DIMS] = -1, [EV_IDX] = -1,
};

/* Distinct byte strings, numbered from 0 in the order in which they were first seen. */
typedef struct {
    char *bytes;
    int64_t used, room;
    int64_t *ends; /* of each string in `bytes` */
    uint64_t *hashes;
    uint8_t *about; /* each string as a category, and whether it is the name of a module */
    int64_t count, most;
    int64_t *slots; /* number + 1, 0 where empty */
    int64_t num_slots;
} Numbered;
enum { CATEGORY = 15, IS_MODULE = 16 };

/* What stands between two values of an object: spaces, comma, key, colon, spaces. Or, where the field is END, what
 * ends the object. next: the links that followed this one, the latest first; 0 where there is none. */
#define LINK_BYTES 54
#define MOST_LINKS 200
#define WAYS 4
typedef struct {
    int16_t next[WAYS];
    uint8_t length, field;
    char bytes[LINK_BYTES];
} Link;
enum { START_LINK, LOST_LINK, FIRST_LINK }; /* before the first field; after one whose link is not kept */
#define UNKNOWN 254
#define END 255
typedef struct {
    const Field *known;
    int count, num_links;
    Link links[MOST_LINKS];
} Object;

#define GUESSES 8192
typedef struct {
    Numbered texts, raws;
    Object event, args;
    const char *at, *end; /* in the text */
    int64_t row[NUM_COLUMNS];
    int failed;
    int64_t *const *blocks; /* of each table, column after column */
    const int64_t *rooms;   /* rows for which there is room in each */
    int64_t *counts;        /* rows of each */
    int64_t last[NUM_COLUMNS]; /* number of the last text or list of a field */
    int32_t text_guess[GUESSES], raw_guess[GUESSES]; /* number + 1 of what stood here the last time */
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

/* The letter that four digits of \u stand for. */
static int escaped(const char *digits)
{
    int found = 0;
    for (int i = 0; i < 4; i++)
        found = 16 * found + (digits[i] <= '9' ? digits[i] - '0' : (digits[i] | 32) - 'a' + 10);
    return found;
}

/* Whether a text that was found right is the name of a module, whose letters may be escaped. */
static uint8_t module_of(const char *text, int64_t length)
{
    const char *end = text + length;
    for (const char *wanted = MODULE; *wanted; wanted++) {
        if (text < end && *text == *wanted)
            text++;
        else if (end - text >= 6 && text[0] == '\\' && text[1] == 'u' && escaped(text + 2) == *wanted)
            text += 6;
        else
            return 0;
    }
    return IS_MODULE;
}

/* The category that a text is, in any case of letters, and whether it is the name of a module. */
static uint8_t about(const char *text, int64_t length)
{
    char lower[24];
    uint8_t module = module_of(text, length);
    for (int64_t i = 0; i < length; i++) {
        if (text[i] == '\\' || (unsigned char)text[i] >= 0x80)
            return module | UNSURE; /* its letters are the plain form's to read */
        if (i < (int64_t)sizeof lower - 1)
            lower[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] + 32) : text[i];
    }
    for (size_t i = 0; i < COUNT(CATEGORIES) && length < (int64_t)sizeof lower; i++)
        if (strlen(CATEGORIES[i].text) == (size_t)length && !memcmp(CATEGORIES[i].text, lower, (size_t)length))
            return module | (uint8_t)CATEGORIES[i].category;
    return module | FOREIGN;
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
    int64_t most = all->most, same = all->most;
    if (!grow((void **)&all->bytes, &all->room, all->used + length, 1)
        || !grow((void **)&all->ends, &most, all->count + 1, sizeof *all->ends)
        || !grow((void **)&all->about, &same, all->count + 1, sizeof *all->about)
        || !grow((void **)&all->hashes, &all->most, all->count + 1, sizeof *all->hashes))
        return -2;
    memcpy(all->bytes + all->used, text, (size_t)length);
    all->used += length;
    all->ends[all->count] = all->used;
    all->hashes[all->count] = hash;
    all->about[all->count] = about(text, length);
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

/* Whether any of 8 bytes ends the easy part of a string: a quote, a backslash, a control character, or not ASCII. */
static int has_mark(const char *p)
{
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t word, quote, backslash;
    memcpy(&word, p, 8);
    quote = word ^ ones * '"', backslash = word ^ ones * '\\';
    return (((quote - ones) | (backslash - ones) | (word - ones * 0x20) | word) & highs) != 0;
}

/* Past one character of UTF-8 that is not ASCII; NULL for what is none (RFC 3629). */
static const unsigned char *character(const unsigned char *p)
{
    int more = *p >= 0xF0 ? 3 : *p >= 0xE0 ? 2 : 1;
    if (*p < 0xC2 || *p > 0xF4)
        return NULL;
    if ((*p == 0xE0 && p[1] < 0xA0) || (*p == 0xED && p[1] > 0x9F) || (*p == 0xF0 && p[1] < 0x90)
        || (*p == 0xF4 && p[1] > 0x8F))
        return NULL;
    for (p++; more; more--, p++)
        if ((*p & 0xC0) != 0x80)
            return NULL;
    return p;
}

/* Past a string; its bytes between the quotes are [*start, *start + *length). */
static int string(State *s, const char **start, int64_t *length)
{
    const unsigned char *p = (const unsigned char *)s->at;
    if (*p++ != '"')
        return fail(s, ODD);
    *start = (const char *)p;
    for (;;) {
        while (s->end - (const char *)p >= 8 && !has_mark((const char *)p))
            p += 8;
        while (*p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\')
            p++;
        if (*p == '"')
            break;
        if (*p >= 0x80) {
            if (!(p = character(p)))
                return fail(s, ODD);
            continue;
        }
        if (*p != '\\')
            return fail(s, ODD); /* a control character, or the end of the text */
        p++;
        if (*p == 'u') {
            for (int i = 1; i <= 4; i++)
                if (!is_hex((char)p[i]))
                    return fail(s, ODD);
            if ((p[1] == 'd' || p[1] == 'D') && p[2] >= '8')
                return fail(s, ODD); /* half of a pair: left to the plain form */
            p += 5;
        } else if (!*p || !strchr("\"\\/bfnrt", *p))
            return fail(s, ODD);
        else
            p++;
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

static int same(const char *a, const char *b, int64_t length)
{
    uint64_t left, right;
    if (length < 8) {
        for (int64_t i = 0; i < length; i++)
            if (a[i] != b[i])
                return 0;
        return 1;
    }
    for (int64_t i = 0; i < length - 8; i += 8) {
        memcpy(&left, a + i, 8), memcpy(&right, b + i, 8);
        if (left != right)
            return 0;
    }
    memcpy(&left, a + length - 8, 8), memcpy(&right, b + length - 8, 8);
    return left == right;
}

/* Where to note what stands in this field after the last one of the field, in events of this name. */
static int32_t *guess_of(State *s, int32_t *guesses, int column, int64_t before)
{
    uint64_t key = (uint64_t)before << 32 ^ (uint64_t)(s->row[NAME] + 1) << 8 ^ (uint64_t)column;
    return &guesses[key * 0x9E3779B97F4A7C15u >> 51]; /* 13 bits: GUESSES */
}

/* Past the guessed string if its bytes, and then `close`, stand here. */
static int is_guessed(State *s, const Numbered *all, int32_t guess, const char *from, int close)
{
    if (!guess)
        return 0;
    int64_t i = guess - 1, start = i ? all->ends[i - 1] : 0, length = all->ends[i] - start;
    if (s->end - from <= length || !same(from, all->bytes + start, length) || (close && from[length] != close))
        return 0;
    s->at = from + length + (close != 0);
    return 1;
}

static int text_value(State *s, int column)
{
    const char *text;
    int64_t length, found, *last = &s->last[column];
    int32_t *guess = guess_of(s, s->text_guess, column, *last);
    if (*s->at == '"' && is_guessed(s, &s->texts, *guess, s->at + 1, '"')) {
        s->row[column] = *last = *guess - 1;
        return 1;
    }
    if (!string(s, &text, &length))
        return 0;
    found = length ? number_of(&s->texts, text, length) : -1;
    if (found == -2)
        return fail(s, NO_MEMORY);
    if (found >= 0 && found < INT32_MAX)
        *last = found, *guess = (int32_t)found + 1;
    s->row[column] = found;
    return 1;
}

/* A value of any kind, numbered by its bytes. A list that begins with the bytes of a list is that list. */
static int raw_value(State *s, int column)
{
    const char *from = s->at;
    int64_t found, *last = &s->last[column];
    int32_t *guess = guess_of(s, s->raw_guess, column, *last);
    if (is_guessed(s, &s->raws, *guess, from, 0)) {
        s->row[column] = *last = *guess - 1;
        return 1;
    }
    if (!value(s, 0))
        return 0;
    found = number_of(&s->raws, from, s->at - from);
    if (found == -2)
        return fail(s, NO_MEMORY);
    *last = found;
    if (*from == '[' && found < INT32_MAX)
        *guess = (int32_t)found + 1;
    s->row[column] = found;
    return 1;
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

static int fields(State *s, Object *object);

static int field_value(State *s, const Field *field)
{
    int64_t *into = &s->row[field->column], *marks = &s->row[MARKS];
    switch ((Kind)field->kind) {
    case INT: return integer(s, into);
    case INT_OR_TEXT:
        if (*s->at != '"') {
            *marks &= ~(int64_t)field->mark;
            return integer(s, into);
        }
        *marks |= field->mark;
        return text_value(s, field->column);
    case TEXT: return text_value(s, field->column);
    case RAW: return raw_value(s, field->column);
    case SIZES: *marks |= field->mark; return sizes(s, into);
    case TIME:
    case DUR: return time_ns(s, into);
    case PHASE: return phase(s, into);
    case ARROW: return arrow(s, into);
    case ARGS:
        if (*marks & HAS_ARGS || *s->at != '{')
            return fail(s, ODD);
        *marks |= HAS_ARGS;
        return fields(s, &s->args);
    }
    return fail(s, ODD);
}

static uint8_t find(const Object *object, const char *key, int64_t length)
{
    for (int i = 0; i < object->count; i++)
        if (object->known[i].length == length && !memcmp(object->known[i].key, key, (size_t)length))
            return (uint8_t)i;
    return UNKNOWN;
}

/* Past what stands before the next value, or past the end of the object; which field it is. */
static int between(State *s, Object *object, int is_first, uint8_t *field)
{
    const char *key;
    int64_t length;
    space(s);
    if (*s->at == '}') {
        *field = END;
        return s->at++, 1;
    }
    if (!is_first) {
        if (*s->at != ',')
            return fail(s, ODD);
        s->at++;
        space(s);
    }
    if (!string(s, &key, &length))
        return 0;
    if (memchr(key, '\\', (size_t)length))
        return fail(s, ODD);
    space(s);
    if (*s->at != ':')
        return fail(s, ODD);
    s->at++;
    space(s);
    *field = find(object, key, length);
    return 1;
}

/* The link of these bytes, made if there is room for one. */
static int link_of(Object *object, const char *bytes, int64_t length, uint8_t field)
{
    int i = FIRST_LINK;
    if (length > LINK_BYTES)
        return LOST_LINK;
    for (; i < object->num_links; i++)
        if (object->links[i].length == length && same(object->links[i].bytes, bytes, length))
            return i;
    if (i == MOST_LINKS)
        return LOST_LINK;
    Link *made = &object->links[object->num_links++];
    memcpy(made->bytes, bytes, (size_t)length);
    made->length = (uint8_t)length, made->field = field;
    return i;
}

/* Past what stands before the next value: what followed `from` before, else whatever it is. */
static int follow(State *s, Object *object, int *from, uint8_t *field)
{
    int16_t *next = object->links[*from].next, one;
    for (int i = 0; i < WAYS && (one = next[i]); i++) {
        const Link *link = &object->links[one];
        if (s->end - s->at >= link->length && same(s->at, link->bytes, link->length)) {
            if (i)
                next[i] = next[i - 1], next[i - 1] = one;
            s->at += link->length;
            *from = one, *field = link->field;
            return 1;
        }
    }
    const char *start = s->at;
    if (!between(s, object, *from == START_LINK, field))
        return 0;
    *from = link_of(object, start, s->at - start, *field);
    if (*from == LOST_LINK)
        return 1;
    memmove(next + 1, next, (WAYS - 1) * sizeof *next);
    next[0] = (int16_t)*from;
    return 1;
}

/* An object, from its bracket on. */
static int fields(State *s, Object *object)
{
    uint8_t field;
    int link = START_LINK;
    s->at++;
    for (;;) {
        if (!follow(s, object, &link, &field))
            return 0;
        if (field == END)
            return 1;
        if (*s->at <= ' ')
            space(s);
        if (!(field == UNKNOWN ? value(s, 0) : field_value(s, &object->known[field])))
            return 0;
    }
}

static int add(State *s, int table)
{
    int64_t row = s->counts[table], room = s->rooms[table], *block = s->blocks[table];
    if (row == room)
        return fail(s, NO_ROOM);
    for (int i = 0; i < TABLES[table].count; i++)
        block[i * room + row] = s->row[TABLES[table].columns[i]];
    s->counts[table]++;
    return 1;
}

/* A slice of a table, with its row of a collective in `comms`, if it has one. */
static int add_slice(State *s, int table, int comms)
{
    const int64_t *row = s->row;
    if (row[TS_NS] == MISSING || row[DUR_NS] == MISSING || row[DUR_NS] >= LONGEST_NS)
        return fail(s, ODD);
    s->row[ROW] = s->counts[table];
    return add(s, table) && (comms < 0 || row[COLLECTIVE] < 0 || add(s, comms));
}

/* The row of an event into the tables to which it belongs. */
static int settle(State *s)
{
    const int64_t *row = s->row;
    int is_slice = row[PH] == SLICE;
    int category = row[CAT] < 0 ? NAMES : s->texts.about[row[CAT]] & CATEGORY;
    if (category != KERNELS && category != RUNTIME && category != FLOWS) {
        if (row[MARKS] & EV_IDX_TEXT)
            return fail(s, ODD);
        if (row[EV_IDX] >= 0
            && !add(s, category == OPS || category == RANGES ? T_OPERATOR_INDICES : T_OTHER_INDICES))
            return 0;
    }
    switch ((Category)category) {
    case KERNELS:
        if (!is_slice)
            return 1;
        if (row[MARKS] & (DEVICE_TEXT | STREAM_TEXT | ORIGINAL_STREAM_TEXT | BYTES_TEXT))
            return fail(s, ODD);
        return add_slice(s, T_KERNELS, T_KERNEL_COMMS) && (row[COPY_KIND] < 0 || add(s, T_COPIES));
    case OPS: return !is_slice || add_slice(s, T_OPS, T_OP_COMMS);
    case RUNTIME:
        return !is_slice || (add_slice(s, T_RUNTIME, -1) && (!(row[MARKS] & HAS_GRID) || add(s, T_LAUNCHES)));
    case RANGES: return !is_slice || add_slice(s, T_RANGES, -1);
    case FUNCTIONS:
        return !is_slice || row[NAME] < 0 || !(s->texts.about[row[NAME]] & IS_MODULE)
            || add_slice(s, T_MODULES, -1);
    case FLOWS:
        if (row[PH] != ARROW_START && row[PH] != ARROW_END)
            return 1;
        if (row[TS_NS] == MISSING)
            return fail(s, ODD);
            return add(s, T_ARROWS);
    case NAMES: return row[PH] != META || add(s, T_META);
    case WAITS: return !is_slice || add(s, T_WAITS);
    case FOREIGN: return !is_slice || add(s, T_FOREIGN);
    case UNSURE: break;
    }
    return fail(s, ODD);
}

State *scan_new(void)
{
    State *s = calloc(1, sizeof *s);
    if (s) {
        s->event.known = EVENT_FIELDS, s->event.count = COUNT(EVENT_FIELDS), s->event.num_links = FIRST_LINK;
        s->args.known = ARGS_FIELDS, s->args.count = COUNT(ARGS_FIELDS), s->args.num_links = FIRST_LINK;
    }
    return s;
}

static void release(Numbered *all)
{
    free(all->bytes), free(all->ends), free(all->hashes), free(all->about), free(all->slots);
}

void scan_free(State *s)
{
    if (s)
        release(&s->texts), release(&s->raws), free(s);
}

/* Number of columns of a row, for the caller to check. */
int64_t scan_columns(void)
{
    return NUM_COLUMNS;
}

/* Number of columns of a table, and which ones; 0 for no table. */
int64_t scan_table(int64_t table, const uint8_t **columns)
{
    if (table < 0 || table >= NUM_TABLES)
        return 0;
    *columns = TABLES[table].columns;
    return TABLES[table].count;
}

/* Tables of the events in text (length bytes and a NUL), added to one block of each table with the columns one
 * after another, each of rooms[table] numbers. Returns the number of events; ODD, NO_MEMORY, or NO_ROOM where a
 * block is too small, and the caller then takes back what was added. counts: rows of each
 * table. */
int64_t scan(State *s, const char *text, int64_t length, int64_t *const *blocks, const int64_t *rooms, int64_t *counts)
{
    s->at = text, s->end = text + length, s->failed = 0;
    s->blocks = blocks, s->rooms = rooms, s->counts = counts;
    for (int64_t n = 1;; n++) {
        space(s);
        if (*s->at != '{')
            return ODD;
        memcpy(s->row, DEFAULTS, sizeof DEFAULTS);
        s->row[START] = s->at - text;
        if (!fields(s, &s->event))
            return s->failed;
        s->row[STOP] = s->at - text;
        if (!settle(s))
            return s->failed;
        space(s);
        if (s->at == s->end)
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
