/* What happens around every call of a watched module while a forward only collects references: what `_in_python` of
 * ../seam.py does, without its frames of Python; and what it takes to count an equal forward's tensors, at once.
 *
 * Everything here may say "not certain", and then Python does the same in full. A module's own `forward` is called
 * straight where torch's `_call_impl` would do nothing else: that is asked at every call.
 *
 * CPython's functions are declared by hand, as in passing.c. Every function here is called with the interpreter's
 * lock held.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct Object PyObject;
typedef intptr_t Size;
typedef PyObject *(*Vectorcall)(PyObject *, PyObject *const *, size_t, PyObject *);
typedef struct {
    const char *name;
    Vectorcall function;
    int flags;
    const char *doc;
} PyMethodDef;
extern PyObject _Py_NoneStruct;
extern PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *own, PyObject *module);
extern PyObject *PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *) __attribute__((weak)); /* 3.11 */
extern PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *);
extern PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...), *PyObject_GetAttr(PyObject *, PyObject *);
extern PyObject *PyObject_GenericGetDict(PyObject *, void *), *PyObject_Type(PyObject *);
extern PyObject *_PyType_Lookup(PyObject *, PyObject *) __attribute__((weak)); /* not of the stable interface */
extern PyObject *PyDict_New(void), *PyDict_GetItemWithError(PyObject *, PyObject *);
extern PyObject *PyTuple_New(Size), *PyTuple_GetItem(PyObject *, Size), *PyUnicode_InternFromString(const char *);
extern PyObject *PyLong_FromVoidPtr(void *), *PyLong_FromSsize_t(Size), *PyErr_Occurred(void);
extern PyObject *PyList_GetItem(PyObject *, Size), *PyList_New(Size), *PyBytes_FromStringAndSize(const char *, Size);
extern char *PyBytes_AsString(PyObject *);
extern double PyFloat_AsDouble(PyObject *);
extern long long PyLong_AsLongLong(PyObject *);
extern int PyDict_Next(PyObject *, Size *, PyObject **, PyObject **), PyList_SetItem(PyObject *, Size, PyObject *);
extern int PyObject_RichCompareBool(PyObject *, PyObject *, int);
extern Size PyDict_Size(PyObject *), PyList_Size(PyObject *), PyTuple_Size(PyObject *);
extern int PyDict_SetItem(PyObject *, PyObject *, PyObject *), PyTuple_SetItem(PyObject *, Size, PyObject *);
extern int PyList_Append(PyObject *, PyObject *), PyObject_IsTrue(PyObject *);
extern Size PyLong_AsSsize_t(PyObject *);
extern unsigned long PyThread_get_thread_ident(void);
extern void PyErr_Clear(void), Py_DecRef(PyObject *), Py_IncRef(PyObject *);
extern void PyErr_Fetch(PyObject **, PyObject **, PyObject **), PyErr_Restore(PyObject *, PyObject *, PyObject *);
#define NONE (&_Py_NoneStruct)
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
static PyObject *table, *in_python, *function_type, *original, *call_impl, *tracing, *compiling, *all_hooks[ALL_HOOKS];
static PyObject *tensor_type, *parameter_type, *is_neg, *name_dtype, *name_version;
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

static PyObject *type_of(PyObject *object)
{
    PyObject *type = PyObject_Type(object);
    Py_DecRef(type); /* the object keeps it */
    return type;
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
    int done;
    for (int one = 0; one < HELD; one++)
        Py_IncRef(held[one]);
    if (count == 2 && direct.leaf && !(names && PyTuple_Size(names))) {
        PyObject *input = kept(args[1]);
        output = call_with(call, args, nargsf, names);
        if (output)
            done = append(events, direct.passed, kept(input), kept(output));
        else
            append_call(events, direct.at, input), done = 1;
        Py_DecRef(input);
    } else {
        output = NULL;
        done = append(events, direct.at, tuple_of(args + 1, count - 1), dict_of(names, args + count));
        if (done && (output = call_with(call, args, nargsf, names)))
            done = append(events, direct.gone, kept(output), kept(NONE));
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

/* (module, *args, **kwargs): what `nn.Module.__call__` is while a watch lasts. */
static PyObject *called(PyObject *own, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (armed_now && COUNT(nargsf) > 0) {
        Direct *direct = direct_of(args[0]);
        Armed *here = direct ? armed_for(direct->lanes) : NULL;
        if (here && number_of(here->lane, name_mode) == 0)
            return collect(*direct, here, args, nargsf, names);
    }
    return call_with(in_python, args, nargsf, names);
}

/* (lanes, lane, events, weigh_at, whether `forward` may be called straight): a forward begins in this thread that only
 * collects. */
static PyObject *arm(PyObject *own, PyObject *const *args, size_t count, PyObject *names)
{
    if (armed_for(args[0]) || armed_now == MOST_ARMED)
        return kept(NONE);
    Armed *here = &armed[armed_now++];
    here->lanes = kept(args[0]), here->lane = kept(args[1]), here->events = kept(args[2]);
    here->thread = PyThread_get_thread_ident();
    here->weigh_at = PyLong_AsSsize_t(args[3]);
    here->straight = PyObject_IsTrue(args[4]) == 1;
    return kept(NONE);
}

/* (lane): its forward is over. */
static PyObject *disarm(PyObject *own, PyObject *const *args, size_t count, PyObject *names)
{
    for (Armed *one = armed; one < armed + armed_now; one++)
        if (one->lane == args[0]) {
            PyObject *held[] = {one->lanes, one->lane, one->events};
            *one = armed[--armed_now];
            for (int at = 0; at < 3; at++)
                Py_DecRef(held[at]);
            break;
        }
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
 * after the other. Where a tensor's object has the address of its inner one is found out once (`calls_prepare`). */
static Size inner_at;

static void fetch_early(PyObject *const *tensors, Size count)
{
    for (Size at = 0; inner_at && at < count; at++) {
        const char *inner = *(const char *const *)((const char *)tensors[at] + inner_at);
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
    while (at < count && number_of(PyList_GetItem(args[0], at), name_version) == 0)
        at++;
    return PyLong_FromSsize_t(at == count);
}

/* DLPack 1.x, as torch gives it since 2.10: all that is asked of a tensor's memory, in one call. */
typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
#define CODE_FLOAT 2
#define CODE_BFLOAT 4
static int (*dltensor)(void *, DLTensor *);

/* Where a plain tensor's numbers lie, and (how many, of which type on which device). 0: not certain, or with gaps or
 * the other sign. */
static int describe(PyObject *tensor, int64_t *address, int64_t *layout)
{
    DLTensor about;
    PyObject *type = type_of(tensor);
    if ((type != tensor_type && type != parameter_type) || dltensor(tensor, &about))
        return 0;
    int64_t size = 1;
    for (int at = about.ndim - 1; at >= 0; at--) {
        if (about.shape[at] != 1 && about.strides[at] != size)
            return 0;
        size *= about.shape[at];
    }
    *address = (int64_t)((uintptr_t)about.data + about.byte_offset);
    layout[0] = size;
    layout[1] = (int64_t)about.code << 56 | (int64_t)about.bits << 48 | (int64_t)about.lanes << 32 |
                (int64_t)(uint16_t)about.device_type << 16 | (uint16_t)about.device_id;
    PyObject *negative = PyObject_CallFunctionObjArgs(is_neg, tensor, NULL);
    int other_sign = negative ? PyObject_IsTrue(negative) : 1;
    if (negative)
        Py_DecRef(negative);
    return !other_sign;
}

/* (tensors: list): (layout, addresses) as bytes if all are plain and dense; else None. */
static PyObject *described(PyObject *own, PyObject *const *args, size_t given, PyObject *names)
{
    Size count = PyList_Size(args[0]), at = 0;
    PyObject *layout = PyBytes_FromStringAndSize(NULL, 16 * count), *found = layout ? PyTuple_New(2) : NULL;
    PyObject *addresses = found ? PyBytes_FromStringAndSize(NULL, 8 * count) : NULL;
    int64_t *layouts = addresses ? (int64_t *)PyBytes_AsString(layout) : NULL;
    while (layouts && dltensor && at < count &&
           describe(PyList_GetItem(args[0], at), (int64_t *)PyBytes_AsString(addresses) + at, layouts + 2 * at))
        at++;
    PyErr_Clear();
    if (layouts && dltensor && at == count) {
        PyTuple_SetItem(found, 0, layout);
        PyTuple_SetItem(found, 1, addresses);
        return found;
    }
    PyObject *made[] = {layout, addresses, found};
    for (at = 0; at < 3; at++)
        if (made[at])
            Py_DecRef(made[at]);
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
    Size count = PyList_Size(args[0]), room = 8 * count, used = 0, at = 0;
    int64_t *words = dltensor ? malloc((size_t)room * sizeof *words) : NULL;
    for (DLTensor about; words && at < count; at++) {
        PyObject *tensor = PyList_GetItem(args[0], at), *type = type_of(tensor);
        if ((type != tensor_type && type != parameter_type) || dltensor(tensor, &about) || format_of(&about) < 0)
            break;
        if (used + 2 + about.ndim > room) {
            int64_t *more = realloc(words, (size_t)(room = 2 * room + about.ndim) * sizeof *words);
            if (!more)
                break;
            words = more;
        }
        words[used++] = format_of(&about);
        words[used++] = about.ndim;
        memcpy(words + used, about.shape, (size_t)about.ndim * sizeof *words);
        used += about.ndim;
    }
    PyErr_Clear();
    PyObject *found = words && at == count ? PyBytes_FromStringAndSize((char *)words, 8 * used) : kept(NONE);
    free(words);
    return found;
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
};

/* A function of those above. */
PyObject *calls_function(Size which) { return PyCFunction_NewEx(&functions[which], NULL, NULL); }

/* `called` as what a function of Python does when it is called: `PyFunction_SetVectorcall`. */
void *calls_vectorcall(void) { return (void *)called; }

/* own: (Tensor, Parameter, is_neg). inner: where a tensor's object has the address of its inner one; 0: not known.
 * Once. */
void calls_prepare(PyObject *own, void *exchange, Size inner)
{
    Py_IncRef(own);
    tensor_type = PyTuple_GetItem(own, 0), parameter_type = PyTuple_GetItem(own, 1), is_neg = PyTuple_GetItem(own, 2);
    name_dtype = PyUnicode_InternFromString("dtype");
    name_version = PyUnicode_InternFromString("_version");
    dltensor = (int (*)(void *, DLTensor *))exchange;
    inner_at = inner;
}

/* known: (table, the seam in Python, type of functions, `_call_impl`, `object.__getattribute__`, 2 questions of which one
 * may be None, 4 global tables of hooks). state: see `tracing_state`. Once. */
void calls_begin(PyObject *known, void *state)
{
    static const char *hooks[OWN_HOOKS] = {"_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks"};
    PyObject **places[] = {&table,     &in_python, &function_type, &call_impl,    &getattribute, &tracing,
                           &compiling, all_hooks,  all_hooks + 1,  all_hooks + 2, all_hooks + 3};
    tracing_state = (State)state;
    Py_IncRef(known);
    for (Size at = 0; at < (Size)(sizeof places / sizeof *places); at++)
        *places[at] = PyTuple_GetItem(known, at);
    for (int at = 0; at < OWN_HOOKS; at++)
        own_hooks[at] = PyUnicode_InternFromString(hooks[at]);
    name_mode = PyUnicode_InternFromString("mode");
    name_weigh_at = PyUnicode_InternFromString("weigh_at");
    name_weigh = PyUnicode_InternFromString("weigh");
    name_forward = PyUnicode_InternFromString("forward");
    name_getattribute = PyUnicode_InternFromString("__getattribute__");
    name_call_impl = PyUnicode_InternFromString("_call_impl");
    name_compiled = PyUnicode_InternFromString("_compiled_call_impl");
}

/* What `nn.Module.__call__` was before. */
void calls_original(PyObject *function)
{
    Py_IncRef(function);
    original = function; /* the one before is kept: a call may be in it */
}
