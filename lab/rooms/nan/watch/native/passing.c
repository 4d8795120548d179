/* What happens for every tensor that passes a watch or a guard on a CPU, without a frame of Python: hooks of
 * autograd, and looks at lists of tensors, at weights and at an optimizer's state.
 *
 * Everything here is a short cut that may always say "not certain": then, and after any error, the Python beside it
 * (`slow`, or the caller) does the same thing in full. The answers are equal; only the way is shorter.
 *
 * CPython's functions are declared by hand and found in the running interpreter: all belong to its stable interface,
 * so one library serves every Python, and compiling it needs no headers. Every function here is called with the
 * interpreter's lock held.
 */
#include <stdint.h>
#include <string.h>

typedef struct Object PyObject;
typedef intptr_t Size;
typedef struct {
    const char *name;
    PyObject *(*function)(PyObject *, PyObject *);
    int flags;
    const char *doc;
} PyMethodDef;
extern PyObject _Py_NoneStruct;
extern PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *own, PyObject *module);
extern PyObject *PyErr_Occurred(void);
extern PyObject *PyList_GetItem(PyObject *, Size), *PyList_New(Size);
extern PyObject *PyLong_FromLongLong(long long), *PyLong_FromVoidPtr(void *);
extern PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...), *PyObject_GetAttr(PyObject *, PyObject *);
extern PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
extern PyObject *PyObject_Type(PyObject *), *PyTuple_GetItem(PyObject *, Size), *PyTuple_New(Size);
extern PyObject *PyUnicode_InternFromString(const char *), *PyWeakref_NewRef(PyObject *, PyObject *);
extern PyObject *PyDict_GetItemWithError(PyObject *, PyObject *), *PyDict_New(void);
extern Size PyDict_Size(PyObject *), PyList_Size(PyObject *), PyTuple_Size(PyObject *);
extern int PyDict_Next(PyObject *, Size *, PyObject **, PyObject **), PyDict_SetItem(PyObject *, PyObject *, PyObject *);
extern int PyList_Append(PyObject *, PyObject *);
extern int PyObject_IsInstance(PyObject *, PyObject *), PyObject_IsTrue(PyObject *);
extern int PyTuple_SetItem(PyObject *, Size, PyObject *);
extern long long PyLong_AsLongLong(PyObject *);
extern unsigned long PyThread_get_thread_ident(void);
extern void PyErr_Clear(void), Py_DecRef(PyObject *), Py_IncRef(PyObject *);
extern void *PyEval_SaveThread(void), *PyLong_AsVoidPtr(PyObject *);
extern void PyEval_RestoreThread(void *);
#define NONE (&_Py_NoneStruct)
#define METH_O 0x0008
#define METH_VARARGS 0x0001

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
#define ON_CPU 1
#define CODE_INT 0
#define CODE_UINT 1
#define CODE_FLOAT 2
#define CODE_BFLOAT 4
#define CODE_BOOL 6

#define FORMATS 4        /* half, bfloat16, float, double: as counts.c has them */
#define LOW (1ULL << 40) /* below it lie the heaps of some Pythons, and what was freed: at its offset from 0 */
#define SHORT (1 << 15)  /* numbers that are read while other threads wait */
/* A guard's memory, which Python holds as an array. */
#define OFF 0      /* not 0: hooks go the slow way */
#define SEEN 1     /* by stage: tensors that were looked at */
#define PEAKS 16   /* (stage, format), as doubles: the largest magnitude */
#define THREADS 64 /* (identity, tensors that passed in it) */
#define MOST_THREADS 32

typedef int64_t (*Count)(int64_t, const uint64_t *, const int64_t *, int, int, double *);
static Count count_tensors;
static int (*dltensor)(void *, DLTensor *);
static PyObject *tensor_type, *parameter_type, *list_type, *dict_type, *filled_type, *bool_type, *dtypes[FORMATS];
static PyObject *numel, *data_ptr, *is_contiguous, *detach, *contiguous, *storage_offset, *current_task, *current_node;
enum { QUESTIONS, OPERATORS, TRANSFORMS, ALL, TRACE = ALL, INFERENCE, STATES };
static PyObject *modes[STATES]; /* what tells whether a program has switched on what sees these, or is in such a state */
static PyObject *name_version, *name_dtype, *name_is_cpu, *name_is_nested, *name_grad, *name_compiling, *name_initialized;
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

static PyObject *type_of(PyObject *object)
{
    PyObject *type = PyObject_Type(object);
    Py_DecRef(type); /* the object keeps it */
    return type;
}

/* Whether it is exactly a torch.Tensor or a Parameter. */
static int is_ordinary(PyObject *tensor)
{
    PyObject *type = type_of(tensor);
    return type == tensor_type || type == parameter_type;
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

static int version_of(PyObject *tensor, int64_t *version)
{
    return number_of(PyObject_GetAttr(tensor, name_version), version);
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

/* (torch.compiler, torch.cuda, args, kwargs): whether a forward begins in which nothing is special: no compiler, trace,
 * capture, backward, transform or inference mode sees it, and what it is given is truth, None and tensors that were never
 * written. */
static PyObject *calm(PyObject *module, PyObject *given)
{
    PyObject *args = PyTuple_GetItem(given, 2), *kwargs = PyTuple_GetItem(given, 3), *name, *value;
    Size at = 0, count = PyTuple_Size(args);
    int64_t task = 0;
    int is_calm = is_quiet(QUESTIONS, ALL) && is_quiet(TRACE, STATES) &&
                  number_of(PyObject_CallFunctionObjArgs(current_task, NULL), &task) && task == -1 &&
                  !truth_of(PyObject_GetAttr(PyTuple_GetItem(given, 0), name_compiling)) &&
                  !truth_of(PyObject_GetAttr(PyTuple_GetItem(given, 1), name_initialized));
    for (; is_calm && at < count; at++)
        is_calm = is_unwritten(PyTuple_GetItem(args, at));
    for (at = 0; is_calm && PyDict_Next(kwargs, &at, &name, &value);)
        is_calm = is_unwritten(value);
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
static PyObject *of_versions(PyObject *args, int (*done)(PyObject *, PyObject *, int64_t))
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
    return PyLong_FromLongLong(all);
}

/* Whether each one's version is the one noted. */
static PyObject *unwritten(PyObject *module, PyObject *args) { return of_versions(args, is_noted); }

/* Notes each one's; whether all are there. */
static PyObject *note_versions(PyObject *module, PyObject *args) { return of_versions(args, note); }

/* (names, versions, counted, optimizer): all parameters of an optimizer as a list, if one of them has a name, none was
 * written since its version was noted, and each one's gradient is the one that was counted; None if not, or not certain. */
static PyObject *usual(PyObject *module, PyObject *args)
{
    PyObject *names = PyTuple_GetItem(args, 0), *versions = PyTuple_GetItem(args, 1);
    PyObject *counted = PyTuple_GetItem(args, 2), *optimizer = PyTuple_GetItem(args, 3);
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

/* plan: list of (place, border, carrier or None). A carrier is a tensor, whose dict of hooks the node of the tensor at
 * that place shares, or a hook for the node itself. The (tensor, border) that got none. */
static PyObject *left_by(PyObject *tensors, PyObject *plan)
{
    Size count = PyList_Size(plan);
    PyObject *left = PyList_New(0);
    int quiet = is_quiet(QUESTIONS, OPERATORS);
    for (Size at = 0; at < count; at++) {
        PyObject *one = PyList_GetItem(plan, at), *carrier = PyTuple_GetItem(one, 2);
        PyObject *tensor = PyList_GetItem(tensors, (Size)PyLong_AsLongLong(PyTuple_GetItem(one, 0)));
        PyObject *node = tensor && quiet ? PyObject_GetAttr(tensor, name_grad_fn) : NULL;
        int64_t number = 1;
        PyObject *own = NULL, *done = NULL;
        if (node && node != NONE && carrier != NONE &&
            number_of(PyObject_GetAttr(tensor, name_output_nr), &number) && !number &&
            (own = PyObject_GetAttr(tensor, name_hooks)) == NONE)
            done = PyObject_CallMethodObjArgs(node, is_ordinary(carrier) ? name_share : name_register, carrier, NULL);
        if (node != NONE && !done) {
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
    return left ? left : nothing();
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

/* Whether all tensors of a dict are surely finite, and those below zero at none of the names in `squares` (or NULL).
 * met: ids of those that were looked at already, or NULL. While large ones are read other threads run, which may write to
 * the dict. */
static int is_sound(int64_t *memory, int64_t stage, PyObject *held, PyObject *squares, PyObject *met)
{
    PyObject *name, *value;
    int sound = type_of(held) == dict_type;
    Size count = sound ? PyDict_Size(held) : 0, at = 0, looked = 0;
    for (uint64_t address; sound && PyDict_Next(held, &at, &name, &value); looked++) {
        if (!is_ordinary(value)) { /* what is no tensor is not read */
            sound = PyObject_IsInstance(value, tensor_type) == 0;
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

static PyMethodDef hooks[] = {
    {"accumulated", accumulated, METH_O, 0},
    {"entered", entered, METH_O, 0},
    {"began", began, METH_O, 0},
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
 * Once. */
void passing_begin(PyObject *known, void *counting, void *exchange)
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
    count_tensors = (Count)counting;
    dltensor = (int (*)(void *, DLTensor *))exchange;
}
