/* What happens for every tensor that passes a watch or a guard on a CPU, without a frame of Python: hooks of
 * autograd, and looks at lists of tensors, at weights and at an optimizer's state.
 *
 * Everything here is a short cut that may always say "not certain": then, and after any error, the Python beside it
 * (`slow`, or the caller) does the same thing in full. The answers are equal; only the way is shorter.
 */
#include "objects.h"

extern PyObject *PyLong_FromLongLong(long long), *PyWeakref_NewRef(PyObject *, PyObject *);
extern int PyMapping_Check(PyObject *), PyNumber_Check(PyObject *), PyObject_IsInstance(PyObject *, PyObject *);
extern int PyDict_DelItem(PyObject *, PyObject *), PySet_Add(PyObject *, PyObject *), PySet_Clear(PyObject *);
extern void *PyEval_SaveThread(void), *PyLong_AsVoidPtr(PyObject *);
extern void PyEval_RestoreThread(void *);
#define PY_NE 3
#define METH_O 0x0008
#define METH_VARARGS 0x0001

#define FORMATS 4        /* half, bfloat16, float, double: as counts.c has them */
#define LOW (1ULL << 40) /* below it lie the heaps of some Pythons, and what was freed: at its offset from 0 */
#define SHORT (1 << 15)  /* numbers that are read while other threads wait */
/* A guard's memory, which Python holds as an array. */
#define OFF 0      /* not 0: hooks go the slow way */
#define SEEN 1     /* by stage: tensors that were looked at */
#define PEAKS 16   /* (stage, format), as doubles: the largest magnitude */
#define THREADS 64 /* (identity, tensors that passed in it) */
#define MOST_THREADS 32
#define POINTS 128 /* how many, and for each its step and what the peaks were then */
#define MOST_POINTS 8
#define STAGES 6

typedef int64_t (*Count)(int64_t, const uint64_t *, const int64_t *, int, int, double *);
static Count count_tensors;
static PyObject *list_type, *dict_type, *filled_type, *bool_type, *dtypes[FORMATS];
static PyObject *numel, *data_ptr, *is_contiguous, *detach, *contiguous, *storage_offset, *current_task, *current_node;
enum { QUESTIONS, OPERATORS, TRANSFORMS, ALL, TRACE = ALL, INFERENCE, STATES };
static PyObject *modes[STATES]; /* what tells whether a program has switched on what sees these, or is in such a state */
static PyObject *name_is_cpu, *name_is_nested, *name_grad, *name_compiling, *name_initialized;
static PyObject *name_grad_fn, *name_output_nr, *name_hooks, *name_share, *name_register, *name_groups, *name_params;
static PyObject *name_parameters, *name_buffers;

typedef struct {
    uint64_t address;
    int64_t size;
    int format, dense;
} Memory;

static int number_of(PyObject *found, int64_t *number)
{
    if (!found)
        return 0;
    *number = PyLong_AsLongLong(found);
    Py_DecRef(found);
    return !(*number == -1 && PyErr_Occurred());
}

static int truth_of(PyObject *found)
{
    int true_ = found ? PyObject_IsTrue(found) : -1;
    if (found)
        Py_DecRef(found);
    return true_;
}

/* Where the numbers of a dense tensor on the CPU lie. 0: not certain. */
static int memory_of(PyObject *tensor, Memory *found)
{
    if (dltensor) {
        DLTensor about;
        if (dltensor(tensor, &about) || about.device_type != ON_CPU || about.lanes != 1)
            return 0;
        if (about.code == CODE_BFLOAT && about.bits == 16)
            found->format = 1;
        else if (about.code == CODE_FLOAT && about.bits >= 16)
            found->format = about.bits == 16 ? 0 : about.bits == 32 ? 2 : 3;
        else
            return 0;
        found->address = (uint64_t)(uintptr_t)about.data + about.byte_offset;
        found->size = 1, found->dense = 1;
        for (int at = about.ndim - 1; at >= 0; at--) {
            if (about.shape[at] != 1 && about.strides[at] != found->size)
                found->dense = 0;
            found->size *= about.shape[at];
        }
        return 1;
    }
    PyObject *dtype = PyObject_GetAttr(tensor, name_dtype);
    if (!dtype)
        return 0;
    Py_DecRef(dtype);
    for (found->format = 0; found->format < FORMATS && dtypes[found->format] != dtype; found->format++)
        ;
    int64_t address = 0;
    if (found->format == FORMATS || truth_of(PyObject_GetAttr(tensor, name_is_cpu)) != 1 ||
        truth_of(PyObject_GetAttr(tensor, name_is_nested)) != 0 ||
        !number_of(PyObject_CallFunctionObjArgs(numel, tensor, NULL), &found->size) ||
        !number_of(PyObject_CallFunctionObjArgs(data_ptr, tensor, NULL), &address))
        return 0;
    found->address = (uint64_t)address;
    found->dense = truth_of(PyObject_CallFunctionObjArgs(is_contiguous, tensor, NULL));
    return found->dense >= 0;
}

/* Whether these numbers were not freed (`storage.resize_(0)`): then they would lie at their offset from 0. */
static int is_held(PyObject *tensor, const Memory *about)
{
    static const int bytes[FORMATS] = {2, 2, 4, 8};
    int64_t offset;
    if (about->address >= LOW)
        return 1;
    return number_of(PyObject_CallFunctionObjArgs(storage_offset, tensor, NULL), &offset) &&
           about->address != (uint64_t)offset * bytes[about->format];
}

/* Whether the program has switched on nothing of what `modes` ask for. */
static int is_quiet(int from, int to)
{
    for (int at = from; at < to; at++) {
        if (modes[at] == NONE)
            continue;
        PyObject *found = PyObject_CallFunctionObjArgs(modes[at], NULL);
        int on = !found || PyObject_IsTrue(found) != 0;
        if (found)
            Py_DecRef(found);
        if (on) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

/* A dense copy of a tensor whose memory has gaps; NULL if that is not certain to be unseen. */
static PyObject *copy_of(PyObject *tensor)
{
    if (!is_quiet(OPERATORS, ALL))
        return NULL;
    PyObject *alone = PyObject_CallFunctionObjArgs(detach, tensor, NULL);
    PyObject *found = alone ? PyObject_CallFunctionObjArgs(contiguous, alone, NULL) : NULL;
    if (alone)
        Py_DecRef(alone);
    return found;
}

/* Whether all numbers of a tensor are finite; its largest magnitude becomes a peak of the stage. 0: not certain.
 * address: where they lie. */
static int is_clean(int64_t *memory, int64_t stage, PyObject *tensor, uint64_t *address)
{
    Memory about;
    PyObject *copy = NULL;
    if (!is_ordinary(tensor) || !memory_of(tensor, &about))
        return 0;
    *address = about.address;
    if (!about.size)
        return 1;
    if (!is_held(tensor, &about))
        return 0;
    if (!about.dense && (!(copy = copy_of(tensor)) || !memory_of(copy, &about) || !about.dense)) {
        if (copy)
            Py_DecRef(copy);
        return 0;
    }
    double row[5], *peak = (double *)&memory[PEAKS + stage * FORMATS + about.format];
    void *thread = about.size > SHORT ? PyEval_SaveThread() : NULL;
    int clean = count_tensors(1, &about.address, &about.size, about.format, 0, row) == 0;
    if (thread)
        PyEval_RestoreThread(thread);
    if (clean) {
        *peak = row[4] > *peak ? row[4] : *peak;
        memory[SEEN + stage]++;
    }
    if (copy)
        Py_DecRef(copy);
    return clean;
}

/* One more tensor has passed in this thread. 0: there are too many threads to tell. */
static int note_passed(int64_t *memory)
{
    int64_t own = (int64_t)PyThread_get_thread_ident();
    for (int64_t *thread = memory + THREADS; thread < memory + THREADS + 2 * MOST_THREADS; thread += 2) {
        if (!thread[0])
            thread[0] = own;
        if (thread[0] == own) {
            thread[1]++;
            return 1;
        }
    }
    return 0;
}

static int is_unwritten(PyObject *given)
{
    int64_t version;
    if (given == NONE || type_of(given) == bool_type)
        return 1;
    return is_ordinary(given) && version_of(given, &version) && !version;
}

static PyObject *call_slow(PyObject *own, Size at, PyObject *value)
{
    PyErr_Clear();
    return PyObject_CallFunctionObjArgs(PyTuple_GetItem(own, at), value, NULL);
}

static PyObject *nothing(void)
{
    Py_IncRef(NONE);
    return NONE;
}

static int64_t *memory_in(PyObject *own) { return PyLong_AsVoidPtr(PyTuple_GetItem(own, 0)); }

static int64_t stage_in(PyObject *own) { return PyLong_AsLongLong(PyTuple_GetItem(own, 1)); }

/* (reference to the gradient, its version, its address): what tells it from every other. NULL: not certain. */
static PyObject *identity_of(PyObject *grad, uint64_t address)
{
    int64_t version;
    if (!version_of(grad, &version))
        return NULL;
    PyObject *reference = PyWeakref_NewRef(grad, NULL), *found = reference ? PyTuple_New(3) : NULL;
    if (!found)
        return NULL;
    PyTuple_SetItem(found, 0, reference);
    PyTuple_SetItem(found, 1, PyLong_FromLongLong(version));
    PyTuple_SetItem(found, 2, PyLong_FromLongLong((long long)address));
    return found;
}

static int put(PyObject *dict, PyObject *object, PyObject *value)
{
    PyObject *key = value ? PyLong_FromVoidPtr(object) : NULL;
    int done = key && !PyDict_SetItem(dict, key, value);
    if (key)
        Py_DecRef(key);
    if (value)
        Py_DecRef(value);
    return done;
}

static PyObject *known_of(PyObject *dict, PyObject *object)
{
    PyObject *key = PyLong_FromVoidPtr(object), *found = key ? PyDict_GetItemWithError(dict, key) : NULL;
    if (key)
        Py_DecRef(key);
    return found;
}

/* own: (memory, stage, slow, counted). A gradient has been added to a parameter's. */
static PyObject *accumulated(PyObject *own, PyObject *parameter)
{
    int64_t *memory = memory_in(own);
    uint64_t address;
    if (memory[OFF] || !is_quiet(QUESTIONS, OPERATORS) || !note_passed(memory))
        return call_slow(own, 2, parameter);
    PyObject *grad = PyObject_GetAttr(parameter, name_grad);
    if (!grad)
        return call_slow(own, 2, parameter);
    int done = grad == NONE || (is_clean(memory, stage_in(own), grad, &address) &&
                                put(PyTuple_GetItem(own, 3), parameter, identity_of(grad, address)));
    Py_DecRef(grad);
    return done ? nothing() : call_slow(own, 2, parameter);
}

/* Whether a gradient is clean, and so has passed. */
static int passes_in(int64_t *memory, int64_t stage, PyObject *grad)
{
    uint64_t address;
    return !memory[OFF] && is_quiet(QUESTIONS, OPERATORS) && note_passed(memory) && is_clean(memory, stage, grad, &address);
}

/* own: (memory, stage, slow). A gradient enters what a module put out. */
static PyObject *entered(PyObject *own, PyObject *grad)
{
    if (grad == NONE || passes_in(memory_in(own), stage_in(own), grad))
        return nothing();
    return call_slow(own, 2, grad);
}

/* own: (memory, stage, slow, border, entered: list). Gradients enter a node; the first enters what the model gave out. */
static PyObject *began(PyObject *own, PyObject *grads)
{
    PyObject *grad = PyTuple_GetItem(grads, 0), *border = PyTuple_GetItem(own, 3);
    if (!grad || grad == NONE || !passes_in(memory_in(own), stage_in(own), grad))
        return call_slow(own, 2, grads);
    PyObject *node = PyObject_CallFunctionObjArgs(current_node, NULL), *pair = node ? PyTuple_New(2) : NULL;
    if (!pair)
        return call_slow(own, 2, grads);
    Py_IncRef(border);
    PyTuple_SetItem(pair, 0, border), PyTuple_SetItem(pair, 1, node);
    PyList_Append(PyTuple_GetItem(own, 4), pair);
    Py_DecRef(pair);
    return nothing();
}

/* (memory, stage, gradient): `passes_in`. */
static PyObject *passes(PyObject *module, PyObject *args)
{
    int passed = passes_in(memory_in(args), stage_in(args), PyTuple_GetItem(args, 2));
    PyErr_Clear();
    return PyLong_FromLongLong(passed);
}

/* How many of these have ever been written; -1 if something is bad or not certain. */
static int64_t written_of(int64_t *memory, int64_t stage, PyObject *tensors)
{
    int64_t written = 0, version, seen = memory[SEEN + stage];
    uint64_t address;
    Size count = PyList_Size(tensors);
    if (!is_quiet(QUESTIONS, ALL))
        return -1;
    for (Size at = 0; at < count; at++) {
        PyObject *one = PyList_GetItem(tensors, at);
        if (!one || !is_clean(memory, stage, one, &address) || !version_of(one, &version)) {
            PyErr_Clear();
            memory[SEEN + stage] = seen; /* the caller counts them all */
            return -1;
        }
        written += version != 0;
    }
    return written;
}

/* (memory, stage, tensors: list): `written_of`. */
static PyObject *clean(PyObject *module, PyObject *args)
{
    return PyLong_FromLongLong(written_of(memory_in(args), stage_in(args), PyTuple_GetItem(args, 2)));
}

/* (torch.compiler, torch.cuda, what tells whether a graph is captured there or None, names of caches: dict, args, kwargs):
 * whether a forward begins in which nothing is special: no compiler, trace, capture, backward, transform or inference mode
 * sees it, and what it is given is caches, truth, None and tensors that were never written. */
static PyObject *calm(PyObject *module, PyObject *given)
{
    PyObject *capturing = PyTuple_GetItem(given, 2), *caches = PyTuple_GetItem(given, 3), *name, *value;
    PyObject *args = PyTuple_GetItem(given, 4), *kwargs = PyTuple_GetItem(given, 5);
    Size at = 0, count = PyTuple_Size(args);
    int64_t task = 0;
    int is_calm = is_quiet(QUESTIONS, ALL) && is_quiet(TRACE, STATES) &&
                  number_of(PyObject_CallFunctionObjArgs(current_task, NULL), &task) && task == -1 &&
                  !truth_of(PyObject_GetAttr(PyTuple_GetItem(given, 0), name_compiling)) &&
                  (!truth_of(PyObject_GetAttr(PyTuple_GetItem(given, 1), name_initialized)) ||
                   (!PyErr_Occurred() && capturing != NONE && !truth_of(PyObject_CallFunctionObjArgs(capturing, NULL))));
    for (; is_calm && at < count; at++)
        is_calm = is_unwritten(PyTuple_GetItem(args, at));
    for (at = 0; is_calm && PyDict_Next(kwargs, &at, &name, &value);)
        is_calm = is_unwritten(value) ||
                  (PyDict_GetItemWithError(caches, name) && !PyObject_IsInstance(value, tensor_type));
    PyErr_Clear();
    return PyLong_FromLongLong(is_calm);
}

/* (memory, whether of all threads): how many tensors have passed. */
static PyObject *passed(PyObject *module, PyObject *args)
{
    int64_t *memory = memory_in(args), own = (int64_t)PyThread_get_thread_ident(), found = 0;
    int all = PyObject_IsTrue(PyTuple_GetItem(args, 1));
    for (int64_t *thread = memory + THREADS; thread < memory + THREADS + 2 * MOST_THREADS && thread[0]; thread += 2)
        found += all || thread[0] == own ? thread[1] : 0;
    return PyLong_FromLongLong(found);
}

static int is_known(PyObject *grad, PyObject *known)
{
    Memory about;
    int64_t version;
    if (!known || !is_ordinary(grad) || !memory_of(grad, &about) || !version_of(grad, &version))
        return 0;
    PyObject *reference = PyWeakref_NewRef(grad, NULL);
    if (reference)
        Py_DecRef(reference); /* two to one object are one object, so the known one still stands */
    return reference == PyTuple_GetItem(known, 0) && PyLong_AsLongLong(PyTuple_GetItem(known, 1)) == version &&
           PyLong_AsLongLong(PyTuple_GetItem(known, 2)) == (long long)about.address;
}

/* Whether a parameter has no gradient, or the one that was counted, as it was then. */
static int has_known(PyObject *parameter, PyObject *counted)
{
    PyObject *grad = PyObject_GetAttr(parameter, name_grad);
    int known = grad && (grad == NONE || is_known(grad, known_of(counted, parameter)));
    if (grad)
        Py_DecRef(grad);
    return known;
}

/* (parameters: list, counted): whether each one's gradient is the one that was counted, as it was then. */
static PyObject *as_counted(PyObject *module, PyObject *args)
{
    PyObject *parameters = PyTuple_GetItem(args, 0), *counted = PyTuple_GetItem(args, 1);
    Size count = PyList_Size(parameters);
    int same = is_quiet(QUESTIONS, OPERATORS);
    for (Size at = 0; same && at < count; at++)
        same = has_known(PyList_GetItem(parameters, at), counted);
    PyErr_Clear();
    return PyLong_FromLongLong(same);
}

static int is_noted(PyObject *versions, PyObject *parameter, int64_t version)
{
    PyObject *known = known_of(versions, parameter);
    return known && PyLong_AsLongLong(known) == version;
}

static int note(PyObject *versions, PyObject *parameter, int64_t version)
{
    return put(versions, parameter, PyLong_FromLongLong(version));
}

/* args: (parameters: list, versions). Whether `done` says so of the version of each. */
static int of_versions(PyObject *args, int (*done)(PyObject *, PyObject *, int64_t))
{
    PyObject *parameters = PyTuple_GetItem(args, 0), *versions = PyTuple_GetItem(args, 1);
    Size count = PyList_Size(parameters);
    int64_t version;
    int all = is_quiet(QUESTIONS, OPERATORS);
    for (Size at = 0; all && at < count; at++) {
        PyObject *parameter = PyList_GetItem(parameters, at);
        all = is_ordinary(parameter) && version_of(parameter, &version) && done(versions, parameter, version);
    }
    PyErr_Clear();
    return all;
}

/* Whether each one's version is the one noted. */
static PyObject *unwritten(PyObject *module, PyObject *args) { return PyLong_FromLongLong(of_versions(args, is_noted)); }

/* Notes each one's; whether all are there. */
static PyObject *note_versions(PyObject *module, PyObject *args) { return PyLong_FromLongLong(of_versions(args, note)); }

/* All parameters of an optimizer as a list, if one of them has a name, none was written since its version was noted, and
 * each one's gradient is the one that was counted; None if not, or not certain. */
static PyObject *usual_of(PyObject *names, PyObject *versions, PyObject *counted, PyObject *optimizer)
{
    PyObject *groups = is_quiet(QUESTIONS, OPERATORS) ? PyObject_GetAttr(optimizer, name_groups) : NULL;
    PyObject *found = PyList_New(0);
    int as_usual = found && groups && type_of(groups) == list_type, ours = 0;
    for (Size group = 0; as_usual && group < PyList_Size(groups); group++) {
        PyObject *one = PyList_GetItem(groups, group);
        PyObject *some = type_of(one) == dict_type ? PyDict_GetItemWithError(one, name_params) : NULL;
        as_usual = some && type_of(some) == list_type;
        for (Size at = 0; as_usual && at < PyList_Size(some); at++) {
            PyObject *parameter = PyList_GetItem(some, at);
            int64_t version;
            as_usual = is_ordinary(parameter) && version_of(parameter, &version) &&
                       is_noted(versions, parameter, version) && has_known(parameter, counted) &&
                       !PyList_Append(found, parameter);
            ours = ours || (as_usual && known_of(names, parameter));
        }
    }
    if (groups)
        Py_DecRef(groups);
    PyErr_Clear();
    if (as_usual && ours)
        return found;
    if (found)
        Py_DecRef(found);
    return nothing();
}

/* (names, versions, counted, optimizer): `usual_of`. */
static PyObject *usual(PyObject *module, PyObject *args)
{
    return usual_of(PyTuple_GetItem(args, 0), PyTuple_GetItem(args, 1), PyTuple_GetItem(args, 2), PyTuple_GetItem(args, 3));
}

/* Whether what was raised is no failure, but Ctrl-C or what else ends the program: that passes. */
static int is_interrupted(void) { return PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception); }

/* plan: list of (place, border, carrier or None). A carrier is a tensor, whose dict of hooks the node of the tensor at
 * that place shares, or a hook for the node itself. The (tensor, border) that got none. */
static PyObject *left_by(PyObject *tensors, PyObject *plan)
{
    Size count = PyList_Size(plan);
    PyObject *left = PyList_New(0);
    int quiet = is_quiet(QUESTIONS, OPERATORS);
    for (Size at = 0; left && at < count; at++) {
        PyObject *one = PyList_GetItem(plan, at), *carrier = PyTuple_GetItem(one, 2);
        PyObject *tensor = PyList_GetItem(tensors, (Size)PyLong_AsLongLong(PyTuple_GetItem(one, 0)));
        PyObject *node = tensor && quiet ? PyObject_GetAttr(tensor, name_grad_fn) : NULL;
        int64_t number = 1;
        PyObject *own = NULL, *done = NULL;
        if (node && node != NONE && carrier != NONE &&
            number_of(PyObject_GetAttr(tensor, name_output_nr), &number) && !number &&
            (own = PyObject_GetAttr(tensor, name_hooks)) == NONE)
            done = PyObject_CallMethodObjArgs(node, is_ordinary(carrier) ? name_share : name_register, carrier, NULL);
        if (node != NONE && !done && is_interrupted()) {
            Py_DecRef(left);
            left = NULL;
        } else if (node != NONE && !done) {
            PyObject *pair = PyTuple_New(2), *border = PyTuple_GetItem(one, 1);
            PyErr_Clear();
            Py_IncRef(tensor), Py_IncRef(border);
            PyTuple_SetItem(pair, 0, tensor), PyTuple_SetItem(pair, 1, border);
            PyList_Append(left, pair);
            Py_DecRef(pair);
        }
        if (own)
            Py_DecRef(own);
        if (done)
            Py_DecRef(done);
        if (node)
            Py_DecRef(node);
    }
    return left;
}

/* (memory, stage, tensors: list, plan): what is `left_by` the plan, if all are clean and none was ever written; else None. */
static PyObject *whole(PyObject *module, PyObject *args)
{
    PyObject *tensors = PyTuple_GetItem(args, 2);
    PyObject *left = written_of(memory_in(args), stage_in(args), tensors) ? NULL : left_by(tensors, PyTuple_GetItem(args, 3));
    return left ? left : is_interrupted() ? NULL : nothing();
}

/* (tensors: list, plan): `left_by`. */
static PyObject *carried(PyObject *module, PyObject *args)
{
    return left_by(PyTuple_GetItem(args, 0), PyTuple_GetItem(args, 1));
}

/* Whether a number below zero is among these; minus zero is none, NaN may be. */
#define FOR_WIDTH(T, NAME)                                                                                          \
    typedef T V##NAME __attribute__((vector_size(32)));                                                             \
    static int below_zero_##NAME(const char *bytes, int64_t count)                                                  \
    {                                                                                                               \
        const T minus = (T)((T)1 << (sizeof(T) * 8 - 1));                                                           \
        const int64_t lanes = 32 / sizeof(T);                                                                       \
        V##NAME found = {0};                                                                                        \
        T any = 0, one, lane[32 / sizeof(T)];                                                                       \
        int64_t at = 0;                                                                                             \
        for (; at + lanes <= count; at += lanes) {                                                                  \
            V##NAME some;                                                                                           \
            memcpy(&some, bytes + at * sizeof(T), sizeof some);                                                     \
            found |= (some < 0) & (some != minus);                                                                  \
        }                                                                                                           \
        memcpy(lane, &found, sizeof found);                                                                         \
        for (int64_t n = 0; n < lanes; n++)                                                                         \
            any |= lane[n];                                                                                         \
        for (; at < count; at++) {                                                                                  \
            memcpy(&one, bytes + at * sizeof(T), sizeof one);                                                       \
            any |= one < 0 && one != minus;                                                                         \
        }                                                                                                           \
        return any != 0;                                                                                            \
    }
FOR_WIDTH(int16_t, 16)
FOR_WIDTH(int32_t, 32)
FOR_WIDTH(int64_t, 64)

static int is_below_zero(PyObject *tensor)
{
    Memory about;
    if (!is_ordinary(tensor) || !memory_of(tensor, &about) || !about.dense || !is_held(tensor, &about))
        return 1;
    const char *bytes = (const char *)(uintptr_t)about.address;
    void *thread = about.size > SHORT ? PyEval_SaveThread() : NULL;
    int found = about.format < 2    ? below_zero_16(bytes, about.size)
                : about.format == 2 ? below_zero_32(bytes, about.size)
                                    : below_zero_64(bytes, about.size);
    if (thread)
        PyEval_RestoreThread(thread);
    return found;
}

/* (tensors: list): whether surely no number of these is below zero. */
static PyObject *none_below_zero(PyObject *module, PyObject *args)
{
    PyObject *tensors = PyTuple_GetItem(args, 0);
    Size count = PyList_Size(tensors);
    int none = is_quiet(QUESTIONS, OPERATORS);
    for (Size at = 0; none && at < count; at++)
        none = !is_below_zero(PyList_GetItem(tensors, at));
    PyErr_Clear();
    return PyLong_FromLongLong(none);
}

/* Whether a tensor holds whole numbers or flags, which are never bad. 0 too if that cannot be told. */
static int is_whole(PyObject *tensor)
{
    DLTensor about;
    return dltensor && !dltensor(tensor, &about) && about.lanes == 1 &&
           (about.code == CODE_INT || about.code == CODE_UINT || about.code == CODE_BOOL);
}

/* Whether a value is None, or a number of Python's that is no NaN. */
static int is_plain_number(PyObject *value)
{
    if (value == NONE)
        return 1;
    double number = PyNumber_Check(value) && !PyMapping_Check(value) ? PyFloat_AsDouble(value) : NAN;
    PyErr_Clear(); /* one that has no size as a double: -1 */
    return number == number;
}

/* Whether all tensors of a dict are surely finite, and those below zero at none of the names in `squares` (or NULL).
 * met: ids of those that were looked at already, or NULL. While large ones are read other threads run, which may write to
 * the dict. */
static int is_sound(int64_t *memory, int64_t stage, PyObject *held, PyObject *squares, PyObject *met)
{
    PyObject *name, *value;
    int sound = type_of(held) == dict_type;
    Size count = sound ? PyDict_Size(held) : 0, at = 0, looked = 0;
    for (uint64_t address; sound && PyDict_Next(held, &at, &name, &value); looked++) {
        if (!is_ordinary(value)) { /* a number is not read; a state in a list or an object is, elsewhere */
            sound = PyObject_IsInstance(value, tensor_type) == 0 && (!squares || is_plain_number(value));
            continue;
        }
        if (met && known_of(met, value))
            continue;
        int is_square = squares && PyDict_GetItemWithError(squares, name);
        Py_IncRef(value);
        sound = (is_clean(memory, stage, value, &address) || is_whole(value)) && !(is_square && is_below_zero(value));
        if (sound && met)
            sound = put(met, value, nothing());
        Py_DecRef(value);
    }
    return sound && looked == count && PyDict_Size(held) == count;
}

static int are_states_sound(int64_t *memory, int64_t stage, PyObject *states, PyObject *squares)
{
    PyObject *key, *kept;
    int sound = 1;
    for (Size at = 0; sound && at < PyList_Size(states); at++) {
        PyObject *state = PyList_GetItem(states, at), *type = type_of(state);
        sound = type == dict_type || type == filled_type;
        Size count = sound ? PyDict_Size(state) : 0, of = 0, looked = 0;
        for (; sound && PyDict_Next(state, &of, &key, &kept); looked++) {
            Py_IncRef(kept);
            sound = is_sound(memory, stage, kept, squares, NULL);
            Py_DecRef(kept);
        }
        sound = sound && looked == count && PyDict_Size(state) == count;
    }
    return sound;
}

static int are_weights_sound(int64_t *memory, int64_t stage, PyObject *modules)
{
    PyObject *met = PyDict_New();
    int sound = met != NULL;
    for (Size at = 0; sound && at < 2 * PyList_Size(modules); at++) {
        PyObject *module = PyTuple_GetItem(PyList_GetItem(modules, at / 2), 1);
        PyObject *held = PyObject_GetAttr(module, at % 2 ? name_buffers : name_parameters);
        sound = held && is_sound(memory, stage, held, NULL, met);
        if (held)
            Py_DecRef(held);
    }
    if (met)
        Py_DecRef(met);
    return sound;
}

/* (memory, first stage of two, states: list of optimizers' dicts, squares: dict by name, modules: list of (name, module)):
 * whether all that optimizers keep and modules hold is surely finite, and no square below zero. */
static PyObject *sound(PyObject *module, PyObject *args)
{
    int64_t *memory = memory_in(args), stage = stage_in(args), seen[] = {memory[SEEN + stage], memory[SEEN + stage + 1]};
    int all = is_quiet(QUESTIONS, ALL) &&
              are_states_sound(memory, stage, PyTuple_GetItem(args, 2), PyTuple_GetItem(args, 3)) &&
              are_weights_sound(memory, stage + 1, PyTuple_GetItem(args, 4));
    if (!all)
        memcpy(&memory[SEEN + stage], seen, sizeof seen); /* the caller counts them all */
    PyErr_Clear();
    return PyLong_FromLongLong(all);
}

/* What the guard does around an update and a backward, where nothing is to be said of it: what `slow` does without its
 * frames. All is asked before anything is changed. */
static const char *const spelled[] = {
    "ended", "step", "open", "_forward_since_update", "reacts", "_begins_with", "_begun_at", "_updated_by", "last", "waits",
    "latest", "_counted_in", "updates", "_since_read", "_updated_step", "_updated_at", "_stepped",
    "_forgotten", "entered", "now", "own", "taken", "lists", "__name__", "every", "magnitudes_every", "_modules",
    "reads", "state", "_written_before_update", "losses", "_looks_for_scaler"};
enum { ENDED, STEP, OPEN, SINCE_UPDATE, REACTS, BEGINS_WITH, BEGUN_AT, UPDATED_BY, LAST, WAITS,
       LATEST, COUNTED_IN, UPDATES, SINCE_READ, UPDATED_STEP, UPDATED_AT, STEPPED,
       FORGOTTEN, ENTERED, NOW, OWN, TAKEN, LISTS, NAME, EVERY, MAGNITUDES_EVERY, MODULES,
       READS, STATE, WRITTEN, LOSSES, LOOKS, SPELLED };
/* What is done to a loss that was scaled: `LINEAR` of ../guard/scaling.py. */
static const char *const linear[] = {"MulBackward0", "DivBackward0", "AddBackward0", "SubBackward0", "NegBackward0", "SumBackward0",
                                     "MeanBackward0", "StackBackward0"};
#define LINEAR ((int)(sizeof linear / sizeof *linear))
static PyObject *spelt[SPELLED], *names_linear[LINEAR];

/* What an object's own dict has under a name, borrowed; NULL if nothing. To ask the object takes three times the lines of
 * the processor's cache. */
static PyObject *of(PyObject *held, int name) { return PyDict_GetItemWithError(held, spelt[name]); }

static int set(PyObject *held, int name, PyObject *value) { return !PyDict_SetItem(held, spelt[name], value); }

/* The same, of a value that is given away. */
static int give(PyObject *held, int name, PyObject *value)
{
    int done = value && set(held, name, value);
    if (value)
        Py_DecRef(value);
    return done;
}

static int give_number(PyObject *held, int name, int64_t number) { return give(held, name, PyLong_FromLongLong(number)); }

static int number_in(PyObject *held, int name, int64_t *number)
{
    PyObject *found = of(held, name);
    *number = found ? PyLong_AsLongLong(found) : -1;
    return found != NULL;
}

static PyObject *pair_of(PyObject *first, PyObject *second)
{
    PyObject *found = PyTuple_New(2);
    if (!found)
        return NULL;
    Py_IncRef(first), Py_IncRef(second);
    PyTuple_SetItem(found, 0, first), PyTuple_SetItem(found, 1, second);
    return found;
}

/* Whether the guard has not ended, nothing waits to be counted, and nobody reacts. */
static int is_at_rest(PyObject *journal, PyObject *collector, PyObject *guard)
{
    return of(journal, ENDED) == FALSE && of(collector, WAITS) == FALSE && of(guard, REACTS) == FALSE;
}

static int note_begin(PyObject *guard, PyObject *journal, PyObject *parameters, PyObject *optimizer, PyObject *found)
{
    PyObject *id = PyLong_FromVoidPtr(optimizer), *updated_by = of(guard, UPDATED_BY), *begun_at = of(guard, BEGUN_AT);
    PyObject *step = of(journal, STEP);
    int done = id && step && updated_by && begun_at && !PySet_Clear(updated_by) && !PySet_Add(updated_by, id) &&
               !PyDict_SetItem(begun_at, id, step) && set(parameters, LAST, NONE) &&
               give(guard, BEGINS_WITH, pair_of(optimizer, found));
    if (id)
        Py_DecRef(id);
    return done;
}

/* own: (slow, dicts of guard, journal, collector and parameters, names, versions, counted). An optimizer's update begins. */
static PyObject *update_begins(PyObject *own, PyObject *args)
{
    PyObject *guard = PyTuple_GetItem(own, 1), *journal = PyTuple_GetItem(own, 2), *optimizer = PyTuple_GetItem(args, 0);
    PyObject *found = NULL;
    if (is_at_rest(journal, PyTuple_GetItem(own, 3), guard) && of(guard, SINCE_UPDATE) == TRUE)
        found = usual_of(PyTuple_GetItem(own, 5), PyTuple_GetItem(own, 6), PyTuple_GetItem(own, 7), optimizer);
    int done = found && found != NONE && note_begin(guard, journal, PyTuple_GetItem(own, 4), optimizer, found);
    if (found)
        Py_DecRef(found);
    return done ? nothing() : call_slow(own, 0, optimizer);
}

/* What `update_ended` has, in this order; dicts of objects from the guard's to that of the borders. */
enum { END_SLOW, END_MEMORY, END_STAGE, END_GUARD, END_JOURNAL, END_COLLECTOR, END_WEIGHTS, END_HEADROOM, END_SCALING, END_BORDERS,
       END_VERSIONS, END_SQUARES, END_READ_FIRST, END_READ_EVERY, END_WRITE_EVERY, END_FIRST_STEPS, END_SHARES, END_NOTHING, END };
typedef struct {
    PyObject *own[END], *optimizer;
    int64_t *memory, step, updates, since, forgotten, reads, magnitudes_every;
} Update;

static int64_t limit(const Update *update, int which) { return PyLong_AsLongLong(update->own[which]); }

/* What is due to magnitudes at the end of this step: nothing, their point, or that they are forgotten. -1: shares, too, or
 * not certain. `Headroom.has_points` in ../guard/headroom.py. */
enum { NO_POINT, POINT, FORGET };
static int point_of(Update *update)
{
    int64_t every, step = update->step, *magnitudes = &update->magnitudes_every;
    if (!number_in(update->own[END_HEADROOM], EVERY, &every) || !number_in(update->own[END_HEADROOM], MAGNITUDES_EVERY, magnitudes))
        return -1;
    if (!every)
        return NO_POINT;
    if (step <= limit(update, END_FIRST_STEPS) || step % (every * limit(update, END_SHARES)) == 0)
        return -1;
    if (step % *magnitudes == 0)
        return update->memory[POINTS] < MOST_POINTS ? POINT : -1;
    return (step + 1) % *magnitudes == 0 ? FORGET : NO_POINT;
}

/* Whether after this update nothing is sampled, written or told. */
static int is_plain_step(Update *update)
{
    PyObject **own = update->own, *with = of(own[END_GUARD], BEGINS_WITH), *begun_at = of(own[END_GUARD], BEGUN_AT);
    PyObject *open = of(own[END_JOURNAL], OPEN), *latest = of(own[END_HEADROOM], LATEST), *known;
    int64_t counted_in;
    return with && PyTuple_GetItem(with, 0) == update->optimizer && open && !PyDict_Size(open) && latest && !PyDict_Size(latest) &&
           begun_at && (known = known_of(begun_at, update->optimizer)) && number_in(own[END_JOURNAL], STEP, &update->step) &&
           PyLong_AsLongLong(known) == update->step && number_in(own[END_WEIGHTS], COUNTED_IN, &counted_in) &&
           counted_in != update->step && number_in(own[END_WEIGHTS], UPDATES, &update->updates) &&
           number_in(own[END_WEIGHTS], SINCE_READ, &update->since) && number_in(own[END_WEIGHTS], READS, &update->reads) &&
           number_in(own[END_BORDERS], FORGOTTEN, &update->forgotten) && (update->step + 1) % limit(update, END_WRITE_EVERY);
}

/* Whether all that was updated since weights were read last, and all weights and buffers, are as they should be: `read` of
 * ../guard/weights.py. */
static int is_read(Update *update, PyObject *by)
{
    int64_t stage = limit(update, END_STAGE), *memory = update->memory, seen[] = {memory[SEEN + stage], memory[SEEN + stage + 1]};
    PyObject *key, *optimizer, *modules = of(update->own[END_WEIGHTS], MODULES);
    PyObject *state = PyObject_GetAttr(update->optimizer, spelt[STATE]), *states = PyList_New(0);
    int sound = state && states && modules && type_of(modules) == list_type && is_quiet(QUESTIONS, ALL) && !PyList_Append(states, state);
    if (state)
        Py_DecRef(state);
    for (Size at = 0; sound && PyDict_Next(by, &at, &key, &optimizer);)
        if (optimizer != update->optimizer) {
            state = PyObject_GetAttr(optimizer, spelt[STATE]);
            sound = state && !PyList_Append(states, state);
            if (state)
                Py_DecRef(state);
        }
    sound = sound && are_states_sound(memory, stage, states, update->own[END_SQUARES]) &&
            are_weights_sound(memory, stage + 1, modules);
    if (!sound)
        memcpy(&memory[SEEN + stage], seen, sizeof seen); /* the caller counts them all */
    if (states)
        Py_DecRef(states);
    PyErr_Clear();
    return sound;
}

/* The update is over, and with it the step. */
static void note_end(Update *update, PyObject *by, PyObject *entered, int reads, int point)
{
    PyObject **own = update->own, *key = PyLong_FromVoidPtr(update->optimizer), *losses = of(own[END_BORDERS], LOSSES);
    int64_t *points = update->memory + POINTS, words = STAGES * FORMATS;
    PyDict_DelItem(of(own[END_GUARD], BEGUN_AT), key);
    set(own[END_GUARD], BEGINS_WITH, own[END_NOTHING]);
    give_number(own[END_WEIGHTS], UPDATED_STEP, update->step), give_number(own[END_WEIGHTS], COUNTED_IN, update->step);
    give_number(own[END_WEIGHTS], UPDATES, update->updates + 1);
    give_number(own[END_WEIGHTS], SINCE_READ, reads ? 0 : update->since + 1);
    give(own[END_WEIGHTS], UPDATED_AT, PyObject_CallFunctionObjArgs(of(own[END_JOURNAL], NOW), NULL));
    if (reads) {
        give_number(own[END_WEIGHTS], READS, update->reads + 1);
        PyDict_Clear(by), PyDict_Clear(of(own[END_WEIGHTS], WRITTEN));
    } else
        PyDict_SetItem(by, key, update->optimizer);
    if (point == POINT) {
        int64_t *row = points + 1 + points[0]++ * (1 + words);
        row[0] = update->step;
        memcpy(row + 1, update->memory + PEAKS, (size_t)words * sizeof *row);
    }
    if (point != NO_POINT)
        memset(update->memory + PEAKS, 0, (size_t)words * sizeof *points);
    give_number(own[END_JOURNAL], STEP, update->step + 1);
    set(own[END_GUARD], SINCE_UPDATE, FALSE), set(own[END_SCALING], STEPPED, TRUE);
    give_number(own[END_BORDERS], FORGOTTEN, update->forgotten + PyList_Size(entered));
    PyList_SetSlice(entered, 0, PyList_Size(entered), NULL);
    PyList_SetSlice(losses, 0, PyList_Size(losses), NULL);
    Py_DecRef(key);
}

/* An optimizer's update has ended. */
static PyObject *update_ended(PyObject *tuple, PyObject *args)
{
    Update update = {.optimizer = PyTuple_GetItem(args, 0)};
    PyObject **own = update.own, *noted = NULL;
    for (int at = 0; at < END; at++)
        own[at] = PyTuple_GetItem(tuple, at);
    update.memory = PyLong_AsVoidPtr(own[END_MEMORY]);
    PyObject *entered = of(own[END_BORDERS], ENTERED), *by = of(own[END_WEIGHTS], UPDATED_BY);
    int point = NO_POINT, reads = 0, done = entered && by && is_at_rest(own[END_JOURNAL], own[END_COLLECTOR], own[END_GUARD]) &&
                                            is_plain_step(&update) && (point = point_of(&update)) >= 0;
    if (done) {
        reads = update.updates < limit(&update, END_READ_FIRST) || update.updates % limit(&update, END_READ_EVERY) == 0;
        done = (!reads || is_read(&update, by)) &&
               (noted = pair_of(PyTuple_GetItem(of(own[END_GUARD], BEGINS_WITH), 1), own[END_VERSIONS])) && of_versions(noted, note);
    }
    if (done)
        note_end(&update, by, entered, reads, point);
    if (noted)
        Py_DecRef(noted);
    return done ? nothing() : call_slow(tuple, END_SLOW, update.optimizer);
}

/* How many tensors have passed in this thread, and what its own list took; -1: not certain. */
static int64_t passed_here(int64_t *memory, PyObject *collector)
{
    PyObject *lists = of(collector, LISTS), *own = lists ? PyObject_GetAttr(lists, spelt[OWN]) : NULL;
    int64_t taken, thread = (int64_t)PyThread_get_thread_ident(), found = own && number_of(PyObject_GetAttr(own, spelt[TAKEN]), &taken) ? taken : -1;
    for (int64_t *one = memory + THREADS; found >= 0 && one < memory + THREADS + 2 * MOST_THREADS && one[0]; one += 2)
        found += one[0] == thread ? one[1] : 0;
    if (own)
        Py_DecRef(own);
    return found;
}

/* Whether a loss is surely not what a scaler made: `factors_of` in ../guard/scaling.py. */
static int is_unscaled(PyObject *loss)
{
    static PyObject *known; /* the type of a node that is not linear */
    PyObject *node = is_ordinary(loss) ? PyObject_GetAttr(loss, name_grad_fn) : NULL, *type = node ? type_of(node) : NULL;
    if (type && type != known) {
        PyObject *name = PyObject_GetAttr(type, spelt[NAME]);
        int is_other = name != NULL;
        for (int at = 0; is_other && at < LINEAR; at++)
            is_other = PyObject_RichCompareBool(name, names_linear[at], PY_NE) == 1;
        if (is_other) {
            Py_IncRef(type);
            known = type; /* types of nodes live for ever */
        } else
            type = NULL;
        if (name)
            Py_DecRef(name);
    }
    if (node)
        Py_DecRef(node);
    return type != NULL;
}

/* own: (slow, memory, dicts of collector, journal and losses). A backward of this loss begins: (when, how many tensors had passed). */
static PyObject *loss_begins(PyObject *own, PyObject *loss)
{
    PyObject *collector = PyTuple_GetItem(own, 2), *journal = PyTuple_GetItem(own, 3), *found = NULL;
    int64_t task, passed, looks;
    if (of(journal, ENDED) == FALSE && number_in(PyTuple_GetItem(own, 4), LOOKS, &looks) && number_of(PyObject_CallFunctionObjArgs(current_task, NULL), &task) && task == -1 &&
        (!looks || is_unscaled(loss)) &&
        (passed = passed_here(PyLong_AsVoidPtr(PyTuple_GetItem(own, 1)), collector)) >= 0) {
        PyObject *now = of(journal, NOW), *moment = now ? PyObject_CallFunctionObjArgs(now, NULL) : NULL;
        PyObject *count = PyLong_FromLongLong(passed);
        found = moment && count ? pair_of(moment, count) : NULL;
        if (moment)
            Py_DecRef(moment);
        if (count)
            Py_DecRef(count);
    }
    return found ? found : call_slow(own, 0, loss);
}

/* own: (slow, memory, stage, dicts of collector and journal, losses: list, how many of these are kept). args: (loss, what
 * `loss_begins` gave). It has ended: a loss whose gradients passed is looked at, and its node kept, if no scaler is to be met by it. */
static PyObject *loss_ended(PyObject *own, PyObject *args)
{
    PyObject *loss = PyTuple_GetItem(args, 0), *begun = PyTuple_GetItem(args, 1), *collector = PyTuple_GetItem(own, 3);
    PyObject *losses = PyTuple_GetItem(own, 5), *node = NULL;
    int64_t *memory = PyLong_AsVoidPtr(PyTuple_GetItem(own, 1)), version;
    uint64_t address;
    int done = begun != NONE && PyTuple_Size(begun) == 2 && of(PyTuple_GetItem(own, 4), ENDED) == FALSE && of(collector, WAITS) == FALSE &&
               passed_here(memory, collector) > PyLong_AsLongLong(PyTuple_GetItem(begun, 1)) && is_ordinary(loss) &&
               is_quiet(QUESTIONS, ALL) && version_of(loss, &version) && (node = PyObject_GetAttr(loss, name_grad_fn)) &&
               is_clean(memory, PyLong_AsLongLong(PyTuple_GetItem(own, 2)), loss, &address);
    if (done && node != NONE && PyList_Size(losses) < PyLong_AsLongLong(PyTuple_GetItem(own, 6)))
        PyList_Append(losses, node);
    if (node)
        Py_DecRef(node);
    PyErr_Clear();
    return done ? nothing() : PyObject_CallFunctionObjArgs(PyTuple_GetItem(own, 0), loss, begun, NULL);
}

static PyMethodDef hooks[] = {
    {"accumulated", accumulated, METH_O, 0},
    {"entered", entered, METH_O, 0},
    {"began", began, METH_O, 0},
    {"update_begins", update_begins, METH_VARARGS, 0},
    {"update_ended", update_ended, METH_VARARGS, 0},
    {"loss_begins", loss_begins, METH_O, 0},
    {"loss_ended", loss_ended, METH_VARARGS, 0},
};
static PyMethodDef looks[] = {
    {"clean", clean, METH_VARARGS, 0},
    {"as_counted", as_counted, METH_VARARGS, 0},
    {"passed", passed, METH_VARARGS, 0},
    {"unwritten", unwritten, METH_VARARGS, 0},
    {"note_versions", note_versions, METH_VARARGS, 0},
    {"none_below_zero", none_below_zero, METH_VARARGS, 0},
    {"carried", carried, METH_VARARGS, 0},
    {"passes", passes, METH_VARARGS, 0},
    {"usual", usual, METH_VARARGS, 0},
    {"whole", whole, METH_VARARGS, 0},
    {"calm", calm, METH_VARARGS, 0},
    {"sound", sound, METH_VARARGS, 0},
};

/* A function that is hook `which`; `own` is the tuple that it is called with. */
PyObject *passing_hook(Size which, PyObject *own) { return PyCFunction_NewEx(&hooks[which], own, NULL); }

PyObject *passing_look(Size which) { return PyCFunction_NewEx(&looks[which], NULL, NULL); }

/* known: (Tensor, Parameter, list, dict, defaultdict, bool, 4 dtypes, 6 methods of Tensor, 7 questions or None).
 * memory_places: as `take_places` has them. Once. */
void passing_begin(PyObject *known, void *counting, void *exchange, const int64_t *memory_places)
{
    PyObject **places[] = {&tensor_type, &parameter_type, &list_type, &dict_type, &filled_type, &bool_type, &dtypes[0],
                           &dtypes[1],   &dtypes[2],      &dtypes[3], &numel,         &data_ptr,     &is_contiguous,
                           &detach,      &contiguous,     &storage_offset,    &modes[TRANSFORMS], &modes[QUESTIONS],
                           &modes[OPERATORS], &modes[TRACE], &modes[INFERENCE], &current_task, &current_node};
    Py_IncRef(known);
    for (Size at = 0; at < (Size)(sizeof places / sizeof *places); at++)
        *places[at] = PyTuple_GetItem(known, at);
    name_version = PyUnicode_InternFromString("_version");
    name_dtype = PyUnicode_InternFromString("dtype");
    name_is_cpu = PyUnicode_InternFromString("is_cpu");
    name_is_nested = PyUnicode_InternFromString("is_nested");
    name_grad_fn = PyUnicode_InternFromString("grad_fn");
    name_output_nr = PyUnicode_InternFromString("output_nr");
    name_hooks = PyUnicode_InternFromString("_backward_hooks");
    name_share = PyUnicode_InternFromString("_register_hook_dict");
    name_register = PyUnicode_InternFromString("register_prehook");
    name_grad = PyUnicode_InternFromString("grad");
    name_parameters = PyUnicode_InternFromString("_parameters");
    name_buffers = PyUnicode_InternFromString("_buffers");
    name_compiling = PyUnicode_InternFromString("_is_compiling_flag");
    name_initialized = PyUnicode_InternFromString("_initialized");
    name_groups = PyUnicode_InternFromString("param_groups");
    name_params = PyUnicode_InternFromString("params");
    for (int at = 0; at < LINEAR; at++)
        names_linear[at] = PyUnicode_InternFromString(linear[at]);
    for (int at = 0; at < SPELLED; at++)
        spelt[at] = PyUnicode_InternFromString(spelled[at]);
    take_places(memory_places);
    count_tensors = (Count)counting;
    dltensor = (int (*)(void *, DLTensor *))exchange;
}
