/* What calls.c and passing.c ask of CPython and of torch's tensors. CPython's functions are declared by hand and found in
 * the running interpreter: nearly all belong to its stable interface, so one library serves every Python, and compiling
 * it needs no headers. Every function here is called with the interpreter's lock held.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct Object PyObject;
typedef intptr_t Size;
typedef struct {
    const char *name;
    void *function; /* of the form that the flags name */
    int flags;
    const char *doc;
} PyMethodDef;
extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct, *PyExc_Exception;
extern PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *own, PyObject *module);
extern PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...), *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
extern PyObject *PyObject_GetAttr(PyObject *, PyObject *), *PyObject_Type(PyObject *);
extern PyObject *PyDict_New(void), *PyDict_GetItemWithError(PyObject *, PyObject *);
extern PyObject *PyList_New(Size), *PyList_GetItem(PyObject *, Size), *PyTuple_New(Size), *PyTuple_GetItem(PyObject *, Size);
extern PyObject *PyLong_FromVoidPtr(void *), *PyErr_Occurred(void), *PyUnicode_InternFromString(const char *);
extern Size PyDict_Size(PyObject *), PyList_Size(PyObject *), PyTuple_Size(PyObject *);
extern int PyDict_Next(PyObject *, Size *, PyObject **, PyObject **), PyDict_SetItem(PyObject *, PyObject *, PyObject *);
extern int PyList_Append(PyObject *, PyObject *), PyList_SetSlice(PyObject *, Size, Size, PyObject *);
extern int PyTuple_SetItem(PyObject *, Size, PyObject *), PyErr_ExceptionMatches(PyObject *);
extern int PyObject_IsTrue(PyObject *), PyObject_RichCompareBool(PyObject *, PyObject *, int);
extern long long PyLong_AsLongLong(PyObject *);
extern double PyFloat_AsDouble(PyObject *);
extern unsigned long PyThread_get_thread_ident(void);
extern void PyDict_Clear(PyObject *), PyErr_Clear(void), Py_DecRef(PyObject *), Py_IncRef(PyObject *);
#define NONE (&_Py_NoneStruct)
#define TRUE (&_Py_TrueStruct)
#define FALSE (&_Py_FalseStruct)

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
static int (*dltensor)(void *, DLTensor *);

static PyObject *tensor_type, *parameter_type, *name_version, *name_dtype;

/* Where in the memory of objects what is read most often stands (layout.py): the type of any object; in a tensor's the
 * address of torch's own one, where that leads to what counts its writes, and where the count stands there. 0: not
 * known. */
static Size type_at, inner_at, counter_at, count_at;

static void take_places(const int64_t *places)
{
    type_at = places[0], inner_at = places[1], counter_at = places[2], count_at = places[3];
}

static PyObject *type_of(PyObject *object)
{
    if (type_at && object)
        return *(PyObject *const *)((const char *)object + type_at);
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

static const char *inner_of(PyObject *tensor) { return *(const char *const *)((const char *)tensor + inner_at); }

/* How often an ordinary tensor was written. 0: not certain; one made in inference mode counts no writes. */
static int version_of(PyObject *tensor, int64_t *version)
{
    if (counter_at) {
        const char *inner = inner_of(tensor), *counter = inner ? *(const char *const *)(inner + counter_at) : NULL;
        if (counter)
            *version = *(const uint32_t *)(counter + count_at);
        return counter != NULL;
    }
    PyObject *found = PyObject_GetAttr(tensor, name_version);
    *version = found ? PyLong_AsLongLong(found) : -1;
    if (found)
        Py_DecRef(found);
    return found && !(*version == -1 && PyErr_Occurred());
}
