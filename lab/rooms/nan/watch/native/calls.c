/* What happens around every call of a watched module while a forward only collects references: what `_in_python` of
 * ../seam.py does, without its frames of Python; and what it takes to count an equal forward's tensors, at once.
 *
 * Everything here may say "not certain", and then Python does the same in full. A module's own `forward` is called
 * straight where torch's `_call_impl` would do nothing else: that is asked at every call.
 */
#include <stdlib.h>

#include "objects.h"

typedef PyObject *(*Vectorcall)(PyObject *, PyObject *const *, size_t, PyObject *);
extern PyObject *PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *) __attribute__((weak)); /* 3.11 */
extern PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *), *PyObject_GenericGetDict(PyObject *, void *);
extern PyObject *_PyType_Lookup(PyObject *, PyObject *) __attribute__((weak)); /* not of the stable interface */
extern PyObject *PyLong_FromSsize_t(Size), *PyBytes_FromStringAndSize(const char *, Size), *PyIter_Next(PyObject *);
extern char *PyBytes_AsString(PyObject *);
extern int PyList_SetItem(PyObject *, Size, PyObject *);
extern Size PyObject_Size(PyObject *), PyLong_AsSsize_t(PyObject *);
extern int PyGC_Disable(void) __attribute__((weak)), PyGC_Enable(void) __attribute__((weak)); /* 3.10 */
extern void PyErr_Fetch(PyObject **, PyObject **, PyObject **), PyErr_Restore(PyObject *, PyObject *, PyObject *);
#define PY_EQ 2
#define METH_FASTCALL_KEYWORDS (0x0080 | 0x0002)
#define COUNT(nargsf) ((Size)((nargsf) & ~((size_t)1 << (8 * sizeof(size_t) - 1))))

/* A watch's lane in one thread, while a forward in it only collects. */
typedef struct {
    PyObject *lanes, *lane, *events;
    unsigned long thread;
    Size weigh_at;
    int straight; /* whether `forward` may be called straight */
} Armed;
#define MOST_ARMED 32 /* a further one goes the way through Python */
static Armed armed[MOST_ARMED];
static int armed_now;

typedef void **(*State)(void);
static State tracing_state; /* where torch keeps the state of a trace in this thread, if that was found */
#define OWN_HOOKS 4
#define ALL_HOOKS 4
#define PROBES 2 /* what tells whether a profiler or a debugger looks at frames */
static PyObject *table, *in_python, *function_type, *original, *call_impl, *tracing, *compiling, *all_hooks[ALL_HOOKS];
static PyObject *probes[PROBES], *of_torch, *loaded, *name_dynamo, *names_all[ALL_HOOKS];
static int is_torchs; /* whether `original` is torch's own, and asks what is expected */
static PyObject *is_neg;
static PyObject *stays, *as_passed, *caches; /* of ../leaves.py */
static PyObject *getattribute, *name_getattribute, *name_mode, *name_weigh_at, *name_weigh, *name_forward, *name_call_impl, *name_compiled, *own_hooks[OWN_HOOKS];

static PyObject *kept(PyObject *object)
{
    Py_IncRef(object);
    return object;
}

static PyObject *tuple_of(PyObject *const *args, Size count)
{
    PyObject *found = PyTuple_New(count);
    for (Size at = 0; found && at < count; at++)
        PyTuple_SetItem(found, at, kept(args[at]));
    return found;
}

static PyObject *dict_of(PyObject *names, PyObject *const *values)
{
    PyObject *found = PyDict_New();
    for (Size at = 0, count = names ? PyTuple_Size(names) : 0; found && at < count; at++)
        if (PyDict_SetItem(found, PyTuple_GetItem(names, at), values[at])) {
            Py_DecRef(found);
            return NULL;
        }
    return found;
}

static PyObject *tuple_type;

/* Whether nothing can be put into a value of this type, or taken out of it. */
static int is_fixed(PyObject *value)
{
    PyObject *type = type_of(value);
    if (type == tensor_type || PyDict_GetItemWithError(stays, type))
        return 1;
    PyErr_Clear(); /* of a class without a hash */
    return 0;
}

/* A value as it is now: the program may later take something out of it, or put something in. NULL: something was raised. */
static PyObject *as_now(PyObject *value)
{
    if (is_fixed(value))
        return kept(value);
    Size count = type_of(value) == tuple_type ? PyTuple_Size(value) : -1, at = 0;
    while (at < count && is_fixed(PyTuple_GetItem(value, at)))
        at++;
    return at == count ? kept(value) : PyObject_CallFunctionObjArgs(as_passed, value, NULL);
}

static PyObject *args_now(PyObject *const *args, Size count)
{
    PyObject *found = PyTuple_New(count), *now;
    for (Size at = 0; found && at < count; at++) {
        if ((now = as_now(args[at]))) {
            PyTuple_SetItem(found, at, now);
        } else {
            Py_DecRef(found);
            found = NULL;
        }
    }
    return found;
}

/* Caches, which are looked into after the forward, stay what they are. */
static PyObject *named_now(PyObject *names, PyObject *const *values)
{
    PyObject *found = PyDict_New();
    for (Size at = 0, count = names ? PyTuple_Size(names) : 0; found && at < count; at++) {
        PyObject *name = PyTuple_GetItem(names, at);
        PyObject *now = is_fixed(values[at]) || PyDict_GetItemWithError(caches, name) ? kept(values[at]) : as_now(values[at]);
        int done = now && !PyDict_SetItem(found, name, now);
        if (now)
            Py_DecRef(now);
        if (!done) {
            Py_DecRef(found);
            found = NULL;
        }
    }
    return found;
}

static PyObject *call_with(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (PyObject_Vectorcall)
        return PyObject_Vectorcall(function, args, nargsf, names);
    PyObject *positional = tuple_of(args, COUNT(nargsf)), *named = dict_of(names, args + COUNT(nargsf)), *found = NULL;
    if (positional && named)
        found = PyObject_Call(function, positional, named);
    if (positional)
        Py_DecRef(positional);
    if (named)
        Py_DecRef(named);
    return found;
}

static Armed *armed_for(PyObject *lanes)
{
    unsigned long thread = PyThread_get_thread_ident();
    for (Armed *one = armed; one < armed + armed_now; one++)
        if (one->lanes == lanes && one->thread == thread)
            return one;
    return NULL;
}

/* A number that an object of Python has under this name; -1 if it has none. */
static Size number_of(PyObject *object, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(object, name);
    Size number = found ? PyLong_AsSsize_t(found) : -1;
    if (found)
        Py_DecRef(found);
    if (PyErr_Occurred())
        PyErr_Clear();
    return number;
}

static int is_none(PyObject *question)
{
    PyObject *found = PyObject_CallFunctionObjArgs(question, NULL);
    if (!found) {
        PyErr_Clear();
        return 0;
    }
    Py_DecRef(found);
    return found == NONE;
}

/* Whether torch would call this module's `forward` and do nothing else: no hook, nothing compiled, no trace. The
 * function that it would call, if that is one of the module's class; else NULL. */
static PyObject *forward_of(PyObject *module, PyObject *expected_type)
{
    PyObject *type = type_of(module), *forward, *compiled;
    if (type != expected_type || !_PyType_Lookup || _PyType_Lookup(type, name_call_impl) != call_impl ||
        _PyType_Lookup(type, name_getattribute) != getattribute)
        return NULL;
    if ((compiled = _PyType_Lookup(type, name_compiled)) && compiled != NONE)
        return NULL;
    for (int at = 0; at < ALL_HOOKS; at++)
        if (PyDict_Size(all_hooks[at]))
            return NULL;
    if (tracing_state ? *tracing_state() != NULL : !is_none(tracing))
        return NULL;
    if ((compiling != NONE && !is_none(compiling)) || !(forward = _PyType_Lookup(type, name_forward)) ||
        type_of(forward) != function_type)
        return NULL;
    PyObject *held = PyObject_GenericGetDict(module, NULL);
    int straight = held && !PyDict_GetItemWithError(held, name_call_impl) && !PyDict_GetItemWithError(held, name_forward) &&
                   (!(compiled = PyDict_GetItemWithError(held, name_compiled)) || compiled == NONE);
    for (int at = 0; straight && at < OWN_HOOKS; at++) {
        PyObject *hooks = PyDict_GetItemWithError(held, own_hooks[at]);
        straight = hooks && PyDict_Size(hooks) == 0;
    }
    if (held)
        Py_DecRef(held);
    if (PyErr_Occurred())
        PyErr_Clear(), straight = 0;
    return straight ? forward : NULL;
}

/* Whether in a forward that begins now a module's `forward` may stand for torch's call of it. Not while a profiler or
 * debugger looks at frames, which would miss torch's. */
static int may_go_straight(void)
{
    int may = is_torchs && (compiling != NONE || !PyDict_GetItemWithError(loaded, name_dynamo));
    for (int at = 0; may && at < PROBES; at++)
        may = is_none(probes[at]);
    for (int at = 0; may && at < ALL_HOOKS; at++)
        may = PyDict_GetItemWithError(of_torch, names_all[at]) == all_hooks[at];
    if (PyErr_Occurred())
        PyErr_Clear(), may = 0;
    return may;
}

/* Three entries of the list of events; the last two are taken over. 0 if memory is short. */
static int append(PyObject *events, PyObject *head, PyObject *first, PyObject *second)
{
    int done = first && second && !PyList_Append(events, head) && !PyList_Append(events, first) &&
               !PyList_Append(events, second);
    if (first)
        Py_DecRef(first);
    if (second)
        Py_DecRef(second);
    return done;
}

/* After an exception of the model's: the call, whose return nobody will see. The exception stays. */
static void append_call(PyObject *events, PyObject *at, PyObject *input)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    append(events, at, tuple_of(&input, 1), dict_of(NULL, NULL));
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

/* What the table of the seam has for a module, in one line of the cache. Python tells whenever that changes. */
typedef struct {
    PyObject *module, *entry, *lanes, *at, *gone, *passed, *type; /* only the entry is held, with what lies in it */
    int leaf;                                                     /* whether it has no children */
} Direct;
#define MOST_MET 4096
static Direct met[MOST_MET];
static Size met_now;

static Direct *direct_of(PyObject *module)
{
    Direct *direct = &met[(((uintptr_t)module >> 4) * 0x9E3779B97F4A7C15ULL >> 40) & (MOST_MET - 1)];
    if (direct->module == module)
        return direct;
    PyObject *key = PyLong_FromVoidPtr(module), *found = key ? PyDict_GetItemWithError(table, key) : NULL;
    if (key)
        Py_DecRef(key);
    PyErr_Clear();
    if (!found)
        return NULL;
    PyObject *before = direct->entry, **parts[] = {&direct->lanes, &direct->at, &direct->gone, &direct->passed, NULL, &direct->type};
    for (Size part = 0; part < 6; part++)
        if (parts[part])
            *parts[part] = PyTuple_GetItem(found, part);
    direct->leaf = PyObject_IsTrue(PyTuple_GetItem(found, 4)) == 1;
    direct->module = module, direct->entry = kept(found);
    if (before)
        Py_DecRef(before);
    else
        met_now++;
    return direct;
}

/* (): the table is another. */
static PyObject *changed(PyObject *own, PyObject *const *args, size_t count, PyObject *names)
{
    for (Direct *direct = met; met_now && direct < met + MOST_MET; direct++) {
        PyObject *entry = direct->entry;
        if (entry) {
            memset(direct, 0, sizeof *direct);
            met_now--;
            Py_DecRef(entry);
        }
    }
    return kept(NONE);
}

#define HELD 7
static PyObject *collect(Direct direct, Armed *here, PyObject *const *args, size_t nargsf, PyObject *names)
{
    PyObject *lanes = here->lanes, *lane = here->lane, *events = here->events, *output;
    Size count = COUNT(nargsf);
    PyObject *forward = here->straight ? forward_of(args[0], direct.type) : NULL, *call = forward ? forward : original;
    /* What is called may end the watch. */
    PyObject *held[] = {lanes, lane, events, call, direct.at, direct.gone, direct.passed};
    int done = 0;
    for (int one = 0; one < HELD; one++)
        Py_IncRef(held[one]);
    if (count == 2 && direct.leaf && !(names && PyTuple_Size(names))) {
        PyObject *input = as_now(args[1]);
        output = input ? call_with(call, args, nargsf, names) : NULL;
        if (output)
            done = append(events, direct.passed, kept(input), as_now(output));
        else if (input)
            append_call(events, direct.at, input), done = 1;
        if (input)
            Py_DecRef(input);
    } else {
        output = NULL;
        done = append(events, direct.at, args_now(args + 1, count - 1), named_now(names, args + count));
        if (done && (output = call_with(call, args, nargsf, names)))
            done = append(events, direct.gone, as_now(output), kept(NONE));
    }
    here = armed_for(lanes); /* it may have moved */
    if (output && done && here && here->lane == lane && PyList_Size(events) > here->weigh_at) {
        PyObject *weigh = PyObject_GetAttr(lanes, name_weigh);
        PyObject *weighed = weigh ? PyObject_CallFunctionObjArgs(weigh, lane, NULL) : NULL;
        if (weigh)
            Py_DecRef(weigh);
        if (weighed) {
            Py_DecRef(weighed);
            if ((here = armed_for(lanes)))
                here->weigh_at = number_of(lane, name_weigh_at);
        } else {
            done = 0;
        }
    }
    if (output && !done) {
        Py_DecRef(output);
        output = NULL;
    }
    for (int one = 0; one < HELD; one++)
        Py_DecRef(held[one]);
    return output;
}

static void arm_lane(PyObject *lanes, PyObject *lane, PyObject *events, Size weigh_at)
{
    if (armed_for(lanes) || armed_now == MOST_ARMED)
        return;
    Armed *here = &armed[armed_now++];
    here->lanes = kept(lanes), here->lane = kept(lane), here->events = kept(events);
    here->thread = PyThread_get_thread_ident();
    here->weigh_at = weigh_at;
    here->straight = may_go_straight();
}

/* (lanes, lane, events, weigh_at): a forward begins in this thread that only collects. */
static PyObject *arm(PyObject *own, PyObject *const *args, size_t count, PyObject *names)
{
    arm_lane(args[0], args[1], args[2], PyLong_AsSsize_t(args[3]));
    return kept(NONE);
}

static void disarm_lane(PyObject *lane)
{
    for (Armed *one = armed; one < armed + armed_now; one++)
        if (one->lane == lane) {
            PyObject *held[] = {one->lanes, one->lane, one->events};
            *one = armed[--armed_now];
            for (int at = 0; at < 3; at++)
                Py_DecRef(held[at]);
            break;
        }
}

/* (lane): its forward is over. */
static PyObject *disarm(PyObject *own, PyObject *const *args, size_t count, PyObject *names)
{
    disarm_lane(args[0]);
    return kept(NONE);
}

/* The shape of an equal forward's events, as numbers: for each event its head and the shapes of its two values. A
 * shape is (kind, type, place or -1), then by kind: OTHER its dtype; ROW (count, whether a list) and the shapes inside;
 * MAPPING count, and each name with its shape. Types, dtypes and names are addresses of what the template keeps. */
enum { ANY, TENSOR, AGAIN, FLOAT, OTHER, ROW, MAPPING };
typedef struct {
    const int64_t *next;
    PyObject **slots;
} Reader;

static PyObject *object_of(int64_t address) { return (PyObject *)(intptr_t)address; }

static int fits(PyObject *value, Reader *reader);

static int row_fits(PyObject *value, Reader *reader)
{
    Size count = reader->next[0], is_list = reader->next[1];
    reader->next += 2;
    if ((is_list ? PyList_Size(value) : PyTuple_Size(value)) != count)
        return 0;
    for (Size at = 0; at < count; at++)
        if (!fits(is_list ? PyList_GetItem(value, at) : PyTuple_GetItem(value, at), reader))
            return 0;
    return 1;
}

static int mapping_fits(PyObject *value, Reader *reader)
{
    Size count = *reader->next++, place = 0, at = 0;
    PyObject *name, *held;
    if (PyDict_Size(value) != count)
        return 0;
    for (; at < count && PyDict_Next(value, &place, &name, &held); at++) {
        PyObject *expected = object_of(*reader->next++);
        if ((name != expected && PyObject_RichCompareBool(name, expected, PY_EQ) != 1) || !fits(held, reader))
            return 0;
    }
    return at == count;
}

/* Whether a value has the shape that comes next; tensors and containers go to their places. */
static int fits(PyObject *value, Reader *reader)
{
    int64_t kind = reader->next[0], slot = reader->next[2];
    PyObject *type = object_of(reader->next[1]);
    reader->next += 3;
    if (!value)
        return 0;
    if (kind == AGAIN)
        return reader->slots[slot] == value;
    if (type_of(value) != type)
        return 0;
    if (slot >= 0)
        reader->slots[slot] = value;
    switch (kind) {
    case ANY:
    case TENSOR:
        return 1;
    case FLOAT:
        return isfinite(PyFloat_AsDouble(value));
    case OTHER: {
        PyObject *dtype = PyObject_GetAttr(value, name_dtype);
        if (dtype)
            Py_DecRef(dtype);
        return dtype == object_of(*reader->next++);
    }
    case ROW:
        return row_fits(value, reader);
    case MAPPING:
        return mapping_fits(value, reader);
    default:
        return 0;
    }
}

/* Whether no tensor stands at two places. 0 too if that cannot be told. */
static int all_differ(PyObject **slots, Size count)
{
    Size room = 8;
    while (room < 2 * count)
        room *= 2;
    PyObject **table = calloc((size_t)room, sizeof *table);
    int differ = table != NULL;
    for (Size at = 0; differ && at < count; at++) {
        Size place = (Size)(((uintptr_t)slots[at] >> 4) * 0x9E3779B97F4A7C15ULL >> 20) & (room - 1);
        while (table[place] && table[place] != slots[at])
            place = (place + 1) & (room - 1);
        differ = !table[place];
        table[place] = slots[at];
    }
    free(table);
    return differ;
}

/* What a forward left has gone from the processor's caches by its end: its lines are asked for all together, not one
 * after the other. */
static Size negative_at; /* where a tensor says that its numbers have the other sign, by this bit; 0: not known */
static uint64_t negative_bit;
/* See `body_at` in layout.py: from where a tensor's body of so many words is read, and which bits equal ones share. */
#define MOST_WORDS 32
static Size body_at, body_words, begin_at, memory_at, address_at;
static uint64_t shared[MOST_WORDS];

static void fetch_early(PyObject *const *tensors, Size count)
{
    for (Size at = 0; inner_at && at < count; at++) {
        const char *inner = inner_of(tensors[at]);
        for (int line = 0; line < 4; line++)
            __builtin_prefetch(inner + 64 * line);
    }
    for (Size at = 0; inner_at && at < count; at++) {
        const char *const *inner = *(const char *const *const *)((const char *)tensors[at] + inner_at);
        for (int word = 2; word < 7; word++) /* its memory, and how often it was written */
            __builtin_prefetch(inner[word]);
    }
}

/* (events: list, shape: bytes, calls, places, tensors): the tensors as a list, if these events have that shape; else
 * None. */
static PyObject *matched(PyObject *own, PyObject *const *args, size_t given, PyObject *names)
{
    PyObject *events = args[0], *found = NULL;
    Size calls = PyLong_AsSsize_t(args[2]), places = PyLong_AsSsize_t(args[3]), tensors = PyLong_AsSsize_t(args[4]);
    Reader reader = {(const int64_t *)PyBytes_AsString(args[1]), calloc((size_t)places + 1, sizeof(PyObject *))};
    int same = reader.next && reader.slots && PyList_Size(events) == 3 * calls;
    for (Size at = 0; same && at < 3 * calls; at++)
        __builtin_prefetch(PyList_GetItem(events, at));
    for (Size at = 0; same && at < calls; at++)
        same = PyLong_AsLongLong(PyList_GetItem(events, 3 * at)) == *reader.next++ &&
               fits(PyList_GetItem(events, 3 * at + 1), &reader) && fits(PyList_GetItem(events, 3 * at + 2), &reader);
    for (Size at = 0; same && at < tensors; at++)
        same = reader.slots[at] != NULL;
    if (same)
        fetch_early(reader.slots, tensors);
    if (same && all_differ(reader.slots, tensors) && (found = PyList_New(tensors)))
        for (Size at = 0; at < tensors; at++)
            PyList_SetItem(found, at, kept(reader.slots[at]));
    free(reader.slots);
    PyErr_Clear();
    return found ? found : kept(NONE);
}

/* (tensors: list): whether surely none of these was ever written. */
static PyObject *unwritten(PyObject *own, PyObject *const *args, size_t given, PyObject *names)
{
    Size count = PyList_Size(args[0]), at = 0;
    for (int64_t version; at < count && version_of(PyList_GetItem(args[0], at), &version) && !version;)
        at++;
    PyErr_Clear();
    return PyLong_FromSsize_t(at == count);
}

static int64_t address_of(const DLTensor *about) { return (int64_t)((uintptr_t)about->data + about->byte_offset); }

/* Whether a tensor is plain, and dense without the other sign: then `about` says the rest. 0 too if that is not certain. */
static int describe(PyObject *tensor, DLTensor *about)
{
    if (!is_ordinary(tensor) || dltensor(tensor, about))
        return 0;
    int64_t size = 1;
    for (int at = about->ndim - 1; at >= 0; at--) {
        if (about->shape[at] != 1 && about->strides[at] != size)
            return 0;
        size *= about->shape[at];
    }
    if (negative_at)
        return !(*(const uint64_t *)(inner_of(tensor) + negative_at) & negative_bit);
    PyObject *negative = PyObject_CallFunctionObjArgs(is_neg, tensor, NULL);
    int other_sign = negative ? PyObject_IsTrue(negative) : 1;
    if (negative)
        Py_DecRef(negative);
    return !other_sign;
}

/* Numbers that become bytes of Python's. */
typedef struct {
    int64_t *words;
    Size room, used;
} Words;

/* Room for so many more. NULL: there is no memory. */
static int64_t *more(Words *words, Size count)
{
    if (words->used + count > words->room) {
        int64_t *found = realloc(words->words, (size_t)(2 * words->room + count) * sizeof *found);
        if (!found)
            return NULL;
        words->words = found, words->room = 2 * words->room + count;
    }
    words->used += count;
    return words->words + words->used - count;
}

static PyObject *bytes_of(Words *words, int whole)
{
    PyObject *found = whole ? PyBytes_FromStringAndSize((const char *)words->words, 8 * words->used) : kept(NONE);
    free(words->words);
    return found;
}

/* (tensors: list): (what equal lists share: of each tensor its type and device, how many dimensions, and these; addresses)
 * as bytes if all are plain and dense; else None. */
static PyObject *described(PyObject *own, PyObject *const *args, size_t given, PyObject *names)
{
    Size count = PyList_Size(args[0]), at = 0;
    Words layout = {NULL}, addresses = {NULL};
    int64_t *next;
    for (DLTensor about; dltensor && at < count && describe(PyList_GetItem(args[0], at), &about); at++) {
        if (!(next = more(&layout, 2 + about.ndim)))
            break;
        next[0] = (int64_t)about.code << 56 | (int64_t)about.bits << 48 | (int64_t)about.lanes << 32 |
                  (int64_t)(uint16_t)about.device_type << 16 | (uint16_t)about.device_id;
        next[1] = about.ndim;
        memcpy(next + 2, about.shape, (size_t)about.ndim * sizeof *next);
        if (!(next = more(&addresses, 1)))
            break;
        *next = address_of(&about);
    }
    PyErr_Clear();
    int whole = dltensor && at == count;
    PyObject *parts[] = {bytes_of(&layout, whole), bytes_of(&addresses, whole)}, *found = whole ? tuple_of(parts, 2) : kept(NONE);
    Py_DecRef(parts[0]), Py_DecRef(parts[1]);
    return found;
}

/* Where a tensor begins with numbers of so many bytes, as torch keeps it; 0: it has no memory. */
static int64_t begin_of(const char *inner, int64_t size)
{
    const char *memory = *(const char *const *)(inner + memory_at);
    return memory ? *(const int64_t *)(memory + address_at) + size * *(const int64_t *)(inner + begin_at) : 0;
}

/* (tensors: list): of each its body and the size of a number, by which `moved` tells equal ones; None if these are not plain and dense, or not kept as is known. */
static PyObject *noted(PyObject *own, PyObject *const *args, size_t given, PyObject *names)
{
    Size count = PyList_Size(args[0]), at = 0;
    Words words = {NULL};
    int64_t *next;
    for (DLTensor about; dltensor && body_words && at < count; at++) {
        PyObject *tensor = PyList_GetItem(args[0], at);
        if (!describe(tensor, &about) || about.ndim > 5 || about.bits % 8 || about.lanes != 1 || !(next = more(&words, body_words + 1)))
            break;
        memcpy(next, inner_of(tensor) + body_at, (size_t)body_words * sizeof *next);
        next[body_words] = about.bits / 8;
        if (begin_of(inner_of(tensor), about.bits / 8) != address_of(&about))
            break;
    }
    PyErr_Clear();
    return bytes_of(&words, dltensor && body_words && at == count);
}

/* (tensors: list, noted: bytes, least): their addresses as bytes if they equal those that were noted, and 16 divides each,
 * and none is below the least; else None. */
static PyObject *moved(PyObject *own, PyObject *const *args, size_t given, PyObject *names)
{
    Size count = PyList_Size(args[0]), at = 0;
    const uint64_t *was = (const uint64_t *)PyBytes_AsString(args[1]);
    int64_t least = PyLong_AsLongLong(args[2]);
    int fits = body_words && PyObject_Size(args[1]) == 8 * (body_words + 1) * count;
    PyObject *found = fits ? PyBytes_FromStringAndSize(NULL, 8 * count) : NULL;
    int64_t *addresses = found ? (int64_t *)PyBytes_AsString(found) : NULL;
    for (; addresses && at < count; at++, was += body_words + 1) {
        PyObject *tensor = PyList_GetItem(args[0], at);
        const char *inner = is_ordinary(tensor) ? inner_of(tensor) : NULL;
        uint64_t differ = !inner;
        for (Size word = 0; inner && word < body_words; word++)
            differ |= (((const uint64_t *)(inner + body_at))[word] ^ was[word]) & shared[word];
        if (differ)
            break;
        addresses[at] = begin_of(inner, (int64_t)was[body_words]);
        if (addresses[at] & 15 || addresses[at] < least)
            break;
    }
    PyErr_Clear();
    if (found && at == count)
        return found;
    if (found)
        Py_DecRef(found);
    return kept(NONE);
}

/* half, bfloat16, float, double; -1: another. */
static int64_t format_of(const DLTensor *about)
{
    if (about->lanes != 1)
        return -1;
    if (about->code == CODE_BFLOAT)
        return about->bits == 16 ? 1 : -1;
    return about->code != CODE_FLOAT ? -1 : about->bits == 16 ? 0 : about->bits == 32 ? 2 : about->bits == 64 ? 3 : -1;
}

/* (tensors: list): for each its type, how many dimensions, and these, as bytes; None if not all are plain. */
static PyObject *shapes(PyObject *own, PyObject *const *args, size_t given, PyObject *names)
{
    Size count = PyList_Size(args[0]), at = 0;
    Words words = {NULL};
    int64_t *next;
    for (DLTensor about; dltensor && at < count; at++) {
        PyObject *tensor = PyList_GetItem(args[0], at);
        if (!is_ordinary(tensor) || dltensor(tensor, &about) || format_of(&about) < 0 || !(next = more(&words, 2 + about.ndim)))
            break;
        next[0] = format_of(&about), next[1] = about.ndim;
        memcpy(next + 2, about.shape, (size_t)about.ndim * sizeof *next);
    }
    PyErr_Clear();
    return bytes_of(&words, dltensor && at == count);
}

/* A whole forward of a guarded model that is as those before: what `_outermost` of ../recorder.py does, from `_open` to
 * `is_over` of ../guard/forwards.py, without their frames. All that these ask is asked here, too, before anything is
 * changed; what is not as usual goes their way. */
enum { SELF, WATCH, GUARD, JOURNAL, HEADROOM, SCALING, COLLECTOR, PARAMETERS, BORDERS, COUNTED, NUMBERS, IS_CALM, WHOLE, FORWARD,
       PHASES, FIRST_STEPS = PHASES + 3, SHARES, MOST_BORDERS, OWN };
typedef struct {
    PyObject *lanes, *own; /* a tuple as above: the watch; dicts of it and of others; what is called; limits */
} Usual;
static Usual usuals[MOST_ARMED];
static int usual_now;
#define NOTHING 0    /* of a lane's modes */
#define EVERYTHING 2
static const char *const spelled[] = {
    "_ended", "_grown", "_at_once", "_never_written", "_plans", "_templates", "_waiting", "budget_bytes", "_reacts",
    "forwards", "lane", "inside", "forward", "events", "weigh_at", "disarm", "spare", "written", "kept", "_idle", "phase",
    "update", "query_length", "_parts", "failed", "num_bytes", "shape", "step", "every", "scaler", "waits",
    "_forward_since_update", "_unbuilt", "last", "entered", "mode", "ends", "_finish_in_full", "react", "hook_left",
    "input_ids", "inputs_embeds", "decoder_input_ids"};
enum { ENDED, GROWN, AT_ONCE, NEVER_WRITTEN, PLANS, TEMPLATES, WAITING, BUDGET, REACTS,
       FORWARDS, LANE, INSIDE, LANES_FORWARD, EVENTS, WEIGH_AT, DISARM, SPARE, WRITTEN, KEPT, IDLE, PHASE,
       UPDATE, LENGTH, PARTS, FAILED, NUM_BYTES, SHAPE, STEP, EVERY, SCALER, WAITS,
       SINCE_UPDATE, UNBUILT, LAST, ENTERED, MODE, ENDS, IN_FULL, REACT, HOOK_LEFT, IDS, SPELLED = IDS + 3 };
static PyObject *spelt[SPELLED], *plain_disarm, *no_limit, *modes[EVERYTHING + 1], *no_number;

/* (lanes, own, or None at its end): the forwards of these lanes may go the short way. */
static PyObject *usual(PyObject *own, PyObject *const *args, size_t count, PyObject *names)
{
    int at = 0;
    while (at < usual_now && usuals[at].lanes != args[0])
        at++;
    if (args[1] != NONE && at == usual_now && usual_now < MOST_ARMED)
        usuals[usual_now++] = (Usual){kept(args[0]), kept(args[1])};
    else if (args[1] == NONE && at < usual_now) {
        Usual before = usuals[at];
        usuals[at] = usuals[--usual_now];
        Py_DecRef(before.lanes), Py_DecRef(before.own);
    }
    return kept(NONE);
}

/* What an object's own dict has under a name, borrowed; NULL if nothing. To ask the object takes three times the lines of
 * the processor's cache. */
static PyObject *of(PyObject *held, int name) { return PyDict_GetItemWithError(held, spelt[name]); }

static int is_false(PyObject *held, int name) { return of(held, name) == FALSE; }

/* A number of Python's under a name; -1 if none. */
static long long count_of(PyObject *held, int name)
{
    PyObject *found = of(held, name);
    return found ? PyLong_AsLongLong(found) : -1;
}

static int set(PyObject *held, int name, PyObject *value) { return !PyDict_SetItem(held, spelt[name], value); }

static int set_number(PyObject *held, int name, long long number)
{
    PyObject *made = PyLong_FromSsize_t((Size)number);
    int done = made && set(held, name, made);
    if (made)
        Py_DecRef(made);
    return done;
}

/* The phase of a forward with these arguments (forward, prefill, decode) and its query's length; -1: not certain. */
static int phase_of(PyObject *const *args, Size count, PyObject *names, Size *length)
{
    DLTensor about;
    *length = 0;
    for (Size at = 0; names && at < PyTuple_Size(names); at++)
        for (int one = IDS; one < SPELLED; one++)
            if (PyObject_RichCompareBool(PyTuple_GetItem(names, at), spelt[one], PY_EQ))
                return -1;
    if (!count || (type_of(args[0]) != tensor_type && type_of(args[0]) != parameter_type))
        return 0;
    if (!dltensor || dltensor(args[0], &about))
        return -1;
    if (about.ndim != 2 || about.code == CODE_FLOAT || about.code == CODE_BFLOAT)
        return 0;
    *length = (Size)about.shape[1];
    return about.code == CODE_INT || about.code == CODE_UINT || about.code == CODE_BOOL ? (*length > 1 ? 1 : 2) : -1;
}

/* The plan that a forward of this phase may be over by, and its template: `_plans` of the watch. */
static PyObject *plan_of(PyObject *watch, PyObject *phase, PyObject **template)
{
    PyObject *plans = of(watch, PLANS), *templates = of(watch, TEMPLATES), *waiting = of(watch, WAITING);
    PyObject *found = plans && templates ? PyDict_GetItemWithError(plans, phase) : NULL;
    if (!found || !waiting || PyObject_Size(waiting))
        return NULL;
    *template = PyTuple_GetItem(found, 0);
    return *template && *template == PyDict_GetItemWithError(templates, phase) ? PyTuple_GetItem(found, 1) : NULL;
}

/* Whether shares are sampled in this step: `Headroom.due`. */
static int is_due(PyObject *const *own, long long step)
{
    long long every = count_of(own[HEADROOM], EVERY), first = PyLong_AsLongLong(own[FIRST_STEPS]);
    return every && (every < 0 || step % (step <= first ? every : every * PyLong_AsLongLong(own[SHARES])) == 0);
}

/* Whether all that lies around a forward is as usual. */
static int is_usual(PyObject *const *own, PyObject *phase, long long step)
{
    PyObject *watch = own[WATCH], *guard = own[GUARD], *never = of(watch, NEVER_WRITTEN), *template;
    PyObject *entered = of(own[BORDERS], ENTERED);
    return is_false(watch, ENDED) && is_false(watch, GROWN) && is_false(watch, AT_ONCE) && is_false(guard, UNBUILT) &&
           never && PyDict_GetItemWithError(never, phase) == TRUE && of(own[SCALING], SCALER) == NONE && step >= 0 &&
           !is_due(own, step) && entered && PyList_Size(entered) <= PyLong_AsLongLong(own[MOST_BORDERS]) &&
           plan_of(watch, phase, &template) && 16 * number_of(template, spelt[NUM_BYTES]) < count_of(watch, BUDGET);
}

/* The first forward after an update begins: `forward_begins` of the guard. */
static int note_begin(PyObject *const *own)
{
    if (of(own[GUARD], SINCE_UPDATE) == TRUE)
        return 1;
    PyDict_Clear(own[COUNTED]);
    return set(own[GUARD], SINCE_UPDATE, TRUE) && set(own[PARAMETERS], LAST, NONE);
}

/* All that was raised here goes, but for Ctrl-C or what else ends the program. */
static void clear_failures(void)
{
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
}

/* Whether a forward that has returned is over: `is_over` of ../guard/forwards.py. Its last three events are taken back
 * if not. */
static int is_over(PyObject *const *own, PyObject *events, PyObject *forward, PyObject *phase)
{
    PyObject *template, *plan = plan_of(own[WATCH], phase, &template), *parts = of(forward, PARTS), *failed = of(forward, FAILED);
    PyObject *shape = plan ? PyObject_GetAttr(template, spelt[SHAPE]) : NULL, *words = NULL, *tensors = NULL, *left = NULL;
    if (shape && shape != NONE && parts && !PyList_Size(parts) && (!failed || !PyObject_IsTrue(failed))) {
        words = PyTuple_GetItem(shape, 0);
        PyObject *given[] = {events, PyTuple_GetItem(words, 0), PyTuple_GetItem(words, 1), PyTuple_GetItem(words, 2),
                             PyTuple_GetItem(words, 3)};
        tensors = matched(NULL, given, 5, NULL);
        if (tensors && tensors != NONE)
            left = PyObject_CallFunctionObjArgs(own[WHOLE], tensors, plan, NULL);
    }
    int over = left && left != NONE;
    if (over && PyList_Size(left)) {
        PyObject *done = PyObject_CallMethodObjArgs(own[SELF], spelt[HOOK_LEFT], left, NULL);
        if (done)
            Py_DecRef(done);
    }
    PyObject *made[] = {shape, tensors, left};
    for (int at = 0; at < 3; at++)
        if (made[at])
            Py_DecRef(made[at]);
    clear_failures();
    return over && !PyErr_Occurred();
}

/* A lane in which a forward runs, its dict, the forward and its dict. */
typedef struct {
    PyObject *lane, *held, *forward, *kept, *phase;
    Size length;
} Running;

/* What `close` of a lane does, and what the guard notes of a forward that is over. */
static void close_usual(PyObject *const *own, Running *now, PyObject *events)
{
    PyObject *number = PyIter_Next(own[NUMBERS]);
    disarm_lane(now->lane);
    set_number(own[WATCH], FORWARDS, count_of(own[WATCH], FORWARDS) + 1);
    set(now->held, INSIDE, FALSE), set(now->held, MODE, modes[EVERYTHING]);
    set(now->held, LANES_FORWARD, of(now->held, IDLE)), set(now->held, SPARE, now->forward);
    PyList_SetSlice(events, 0, PyList_Size(events), NULL);
    if (number)
        Py_DecRef(number);
}

/* The forward's own object: the one that the lane kept from the last that was over, or a new one. */
static int begin_forward(PyObject *const *own, Running *now, long long step)
{
    PyObject *spare = of(now->held, SPARE);
    now->forward = spare && spare != NONE ? kept(spare) : NULL;
    now->kept = now->forward ? PyObject_GenericGetDict(now->forward, NULL) : NULL;
    if (!now->kept || of(now->kept, PHASE) != now->phase) {
        if (now->forward)
            Py_DecRef(now->forward);
        if (now->kept)
            Py_DecRef(now->kept);
        now->forward = PyObject_CallFunctionObjArgs(own[FORWARD], no_number, now->phase, NULL);
        now->kept = now->forward ? PyObject_GenericGetDict(now->forward, NULL) : NULL;
    }
    return now->kept && set_number(now->kept, UPDATE, step) && set(now->held, SPARE, NONE);
}

/* The forward goes on in Python: it was not as usual, or raised, which stays. 0: something was raised beside. */
static int finish_in_full(PyObject *const *own, Running *now, PyObject *at, PyObject *output)
{
    PyObject *raised[3] = {NULL};
    PyErr_Fetch(raised, raised + 1, raised + 2);
    set(now->held, DISARM, plain_disarm), set_number(now->kept, LENGTH, now->length);
    PyObject *done = PyObject_CallMethodObjArgs(own[SELF], spelt[IN_FULL], now->lane, at, output ? output : NONE,
                                                output ? TRUE : FALSE, NULL);
    if (done)
        PyErr_Restore(raised[0], raised[1], raised[2]);
    for (int one = 0; !done && one < 3; one++)
        if (raised[one])
            Py_DecRef(raised[one]);
    if (done)
        Py_DecRef(done);
    return done && !(output && PyErr_Occurred());
}

/* The output, unless what is called on the watch raises. */
static PyObject *unless_raised(PyObject *const *own, int method, PyObject *forward, PyObject *output)
{
    PyObject *done = PyObject_CallMethodObjArgs(own[SELF], spelt[method], forward, NULL);
    Py_DecRef(done ? done : output);
    return done ? output : NULL;
}

/* The call of a usual forward's outermost module, and all that follows. */
static PyObject *through(PyObject *const *own, Direct *direct, Running *now, PyObject *const *args, size_t nargsf, PyObject *names)
{
    PyObject *events = kept(of(now->held, EVENTS)), *at = kept(direct->at), *gone = kept(direct->gone), *output = NULL;
    PyObject *given = args_now(args + 1, COUNT(nargsf) - 1), *named = named_now(names, args + COUNT(nargsf));
    PyObject *call = may_go_straight() ? forward_of(args[0], direct->type) : NULL;
    if (given && named && set(now->held, LANES_FORWARD, now->forward) && set(now->held, INSIDE, TRUE) && set(now->held, WEIGH_AT, no_limit) &&
        set(now->held, MODE, modes[NOTHING]) &&
        append(events, at, kept(given), kept(named))) {
        arm_lane(direct->lanes, now->lane, events, INTPTR_MAX);
        call = kept(call ? call : original);
        int collected = PyGC_Disable(); /* thousands of small events at once would set it off */
        output = call_with(call, args, nargsf, names);
        Py_DecRef(call);
        Size end = PyList_Size(events);
        int over = output && count_of(now->held, MODE) == NOTHING && of(now->held, LANES_FORWARD) == now->forward &&
                   append(events, gone, kept(output), kept(NONE)) && is_over(own, events, now->kept, now->phase);
        if (over)
            close_usual(own, now, events);
        else if (output)
            clear_failures(), PyList_SetSlice(events, end, PyList_Size(events), NULL);
        if (!over && !finish_in_full(own, now, at, output) && output) {
            Py_DecRef(output);
            output = NULL;
        }
        if (over && of(own[COLLECTOR], WAITS) != FALSE)
            output = unless_raised(own, ENDS, now->forward, output);
        if (collected)
            PyGC_Enable();
        if (output && of(own[WATCH], REACTS) == TRUE)
            output = unless_raised(own, REACT, now->forward, output);
    }
    PyObject *held[] = {events, at, gone, given, named};
    for (int one = 0; one < 5; one++)
        if (held[one])
            Py_DecRef(held[one]);
    return output;
}

/* The call of an outermost module, if that is as usual. 0: it is not, and nothing was changed. */
static int usual_call(Direct direct, PyObject *const *args, size_t nargsf, PyObject *names, PyObject **output)
{
    int known = 0, done = 0;
    while (known < usual_now && usuals[known].lanes != direct.lanes)
        known++;
    if (known == usual_now || !PyGC_Disable || PyLong_AsSsize_t(direct.at))
        return 0;
    PyObject *tuple = kept(usuals[known].own), *own[OWN], *lanes = kept(direct.lanes), *entry = kept(direct.entry);
    Running now = {PyObject_GetAttr(lanes, spelt[LANE])};
    now.held = now.lane ? PyObject_GenericGetDict(now.lane, NULL) : NULL;
    for (int at = 0; at < OWN; at++)
        own[at] = PyTuple_GetItem(tuple, at);
    if (now.held && count_of(now.held, MODE) == EVERYTHING && is_false(now.held, INSIDE)) {
        Size count = COUNT(nargsf);
        int phase = phase_of(args + 1, count - 1, names, &now.length);
        long long step = count_of(own[JOURNAL], STEP);
        now.phase = own[PHASES + (phase > 0 ? phase : 0)];
        if (phase >= 0 && is_usual(own, now.phase, step)) {
            PyObject *given = tuple_of(args + 1, count - 1), *named = dict_of(names, args + count);
            PyObject *calm = given && named ? PyObject_CallFunctionObjArgs(own[IS_CALM], given, named, NULL) : NULL;
            done = calm && PyObject_IsTrue(calm) == 1 && begin_forward(own, &now, step) && note_begin(own);
            PyObject *made[] = {given, named, calm};
            for (int at = 0; at < 3; at++)
                if (made[at])
                    Py_DecRef(made[at]);
        }
    }
    PyErr_Clear();
    if (done)
        *output = through(own, &direct, &now, args, nargsf, names);
    PyObject *held[] = {tuple, lanes, entry, now.lane, now.held, now.forward, now.kept};
    for (int at = 0; at < 7; at++)
        if (held[at])
            Py_DecRef(held[at]);
    return done;
}

/* (module, *args, **kwargs): what `nn.Module.__call__` is while a watch lasts. */
static PyObject *called(PyObject *own, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Direct *direct = (armed_now || usual_now) && COUNT(nargsf) > 0 ? direct_of(args[0]) : NULL;
    if (direct) {
        PyObject *output;
        Armed *here = armed_for(direct->lanes);
        if (here && number_of(here->lane, name_mode) == NOTHING)
            return collect(*direct, here, args, nargsf, names);
        if (!here && usual_now && usual_call(*direct, args, nargsf, names, &output))
            return output;
    }
    return call_with(in_python, args, nargsf, names);
}

static PyMethodDef functions[] = {
    {"called", called, METH_FASTCALL_KEYWORDS, 0},
    {"arm", arm, METH_FASTCALL_KEYWORDS, 0},
    {"disarm", disarm, METH_FASTCALL_KEYWORDS, 0},
    {"changed", changed, METH_FASTCALL_KEYWORDS, 0},
    {"matched", matched, METH_FASTCALL_KEYWORDS, 0},
    {"unwritten", unwritten, METH_FASTCALL_KEYWORDS, 0},
    {"described", described, METH_FASTCALL_KEYWORDS, 0},
    {"shapes", shapes, METH_FASTCALL_KEYWORDS, 0},
    {"usual", usual, METH_FASTCALL_KEYWORDS, 0},
    {"noted", noted, METH_FASTCALL_KEYWORDS, 0},
    {"moved", moved, METH_FASTCALL_KEYWORDS, 0},
};

/* A function of those above. */
PyObject *calls_function(Size which) { return PyCFunction_NewEx(&functions[which], NULL, NULL); }

/* `called` as what a function of Python does when it is called: `PyFunction_SetVectorcall`. */
void *calls_vectorcall(void) { return (void *)called; }

/* own: (Tensor, Parameter, is_neg). places: as `take_places` has them, of the sign and its bit, of the body, of which so
 * many words are known. Once. */
void calls_prepare(PyObject *own, void *exchange, const int64_t *places, Size words)
{
    Py_IncRef(own);
    tensor_type = PyTuple_GetItem(own, 0), parameter_type = PyTuple_GetItem(own, 1), is_neg = PyTuple_GetItem(own, 2);
    name_dtype = PyUnicode_InternFromString("dtype");
    name_version = PyUnicode_InternFromString("_version");
    dltensor = (int (*)(void *, DLTensor *))exchange;
    take_places(places);
    negative_at = places[4], negative_bit = (uint64_t)places[5];
    memory_at = places[6], address_at = places[7], begin_at = places[8], body_at = places[9];
    body_words = words <= MOST_WORDS ? words : 0;
    for (Size word = 0; word < body_words; word++)
        shared[word] = (uint64_t)places[10 + word];
}

/* known: (table, the seam in Python, type of functions, `_call_impl`, `object.__getattribute__`, 2 questions of which one
 * may be None, 4 global tables of hooks, dict of the module that has these, `sys.modules`, 2 that tell who looks at
 * frames, and what `as_now` asks). state: see `tracing_state`. Once. */
void calls_begin(PyObject *known, void *state)
{
    static const char *tables[ALL_HOOKS] = {"_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks",
                                            "_global_forward_pre_hooks"};
    static const char *hooks[OWN_HOOKS] = {"_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks"};
    PyObject **places[] = {&table,     &in_python, &function_type, &call_impl,    &getattribute, &tracing,
                           &compiling, all_hooks,  all_hooks + 1,  all_hooks + 2, all_hooks + 3, &of_torch,
                           &loaded,    probes,     probes + 1,    &stays,        &as_passed,    &caches};
    tracing_state = (State)state;
    Py_IncRef(known);
    for (Size at = 0; at < (Size)(sizeof places / sizeof *places); at++)
        *places[at] = PyTuple_GetItem(known, at);
    for (int at = 0; at < OWN_HOOKS; at++)
        own_hooks[at] = PyUnicode_InternFromString(hooks[at]);
    for (int at = 0; at < ALL_HOOKS; at++)
        names_all[at] = PyUnicode_InternFromString(tables[at]);
    for (int at = 0; at < SPELLED; at++)
        spelt[at] = PyUnicode_InternFromString(spelled[at]);
    name_dynamo = PyUnicode_InternFromString("torch._dynamo");
    PyObject *empty = PyTuple_New(0);
    tuple_type = type_of(empty);
    Py_DecRef(empty);
    modes[NOTHING] = PyLong_FromSsize_t(NOTHING), modes[EVERYTHING] = PyLong_FromSsize_t(EVERYTHING);
    no_limit = PyLong_FromSsize_t(INTPTR_MAX), no_number = PyLong_FromSsize_t(-1);
    plain_disarm = calls_function(2);
    name_mode = PyUnicode_InternFromString("mode");
    name_weigh_at = PyUnicode_InternFromString("weigh_at");
    name_weigh = PyUnicode_InternFromString("weigh");
    name_forward = PyUnicode_InternFromString("forward");
    name_getattribute = PyUnicode_InternFromString("__getattribute__");
    name_call_impl = PyUnicode_InternFromString("_call_impl");
    name_compiled = PyUnicode_InternFromString("_compiled_call_impl");
}

/* What `nn.Module.__call__` was before, and whether that is torch's own. */
void calls_original(PyObject *function, int torchs)
{
    Py_IncRef(function);
    original = function; /* the one before is kept: a call may be in it */
    is_torchs = torchs;
}
