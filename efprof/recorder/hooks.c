/* The functions that are put in torch's place for calls which every step makes and no compiler looks into: they tell a
 * stopwatch and call what was there. In Python they cost a step half as much again (measured); and no frame of ours
 * stands in a traceback. `NoStopwatch` of stopwatches.py says in Python what they do besides.
 *
 * An optimizer's hooks and a module's `__call__` stay in Python: torch.compile goes through those, and would break its
 * graph at a function in C.
 *
 * What is handed to them from Python is guarded: it raises only what a signal's handler raises.
 */
#include "stopwatch.h"

enum { BEGAN };                                                        /* first of all of them */
enum { ENDED = 1, COUNT = 2, EXHAUSTED = 3, BROKE_OFF = 4, MAX_TOLD = 5 }; /* of a fetch */
enum { NOTED = 1, LEFT = 2 };                                          /* of a call of backward */
enum { HAS_READ = 1 };                                                 /* of a read */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Stopwatch *watch;
    PyObject *original;
    PyObject *told[MAX_TOLD]; /* functions in Python, by the names above */
    PyObject *dict, *weak_references;
} Hook;

static int tell(PyObject *function, PyObject *argument)
{
    PyObject *result = argument ? PyObject_CallOneArg(function, argument) : PyObject_CallNoArgs(function);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

PyObject *stopwatch_take_raised(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback)
        PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
#endif
}

void stopwatch_raise(PyObject *error)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

/* Calls `leave` as a `finally` is run: the error is being handled, and is raised again unless `leave` raises another. */
static PyObject *leave_with_error(Hook *self, int (*leave)(Hook *, PyObject *))
{
    /* This frame's own: what `PyErr_GetHandledException` gives may be of whoever resumed a generator. */
    PyObject *handled_before = Py_XNewRef(PyThreadState_Get()->exc_info->exc_value), *error = stopwatch_take_raised();
    PyErr_SetHandledException(error);
    int status = leave(self, error);
    PyErr_SetHandledException(handled_before);
    Py_XDECREF(handled_before);
    if (status < 0)
        Py_DECREF(error);
    else
        stopwatch_raise(error);
    return NULL;
}

static PyObject *named_or_first(const char *name, PyObject *const *args, size_t num_args, PyObject *names)
{
    Py_ssize_t num_positional = PyVectorcall_NARGS(num_args);
    if (num_positional)
        return args[0];
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), name) == 0)
            return args[num_positional + i];
    return Py_None;
}

/* `_BaseDataLoaderIter.__next__` */

static int broke_off(Hook *self, PyObject *Py_UNUSED(error)) { return tell(self->told[BROKE_OFF], NULL); }

static int gave_nothing(Hook *self, PyObject *error)
{
    if (PyErr_GivenExceptionMatches(error, PyExc_StopIteration) && tell(self->told[EXHAUSTED], NULL) < 0) {
        leave_with_error(self, broke_off);
        return -1;
    }
    return broke_off(self, error);
}

static PyObject *fetch(PyObject *callable, PyObject *const *args, size_t num_args, PyObject *names)
{
    Hook *self = (Hook *)callable;
    PyObject *batch = NULL;
    if (PyVectorcall_NARGS(num_args) == 0)
        return PyObject_Vectorcall(self->original, args, num_args, names); /* which will complain */
    int status = stopwatch_mark(self->watch, FETCH);
    if (status == 0)
        status = tell(self->told[BEGAN], args[0]);
    if (status >= 0)
        batch = PyObject_Vectorcall(self->original, args, num_args, names);
    if (batch == NULL)
        return leave_with_error(self, gave_nothing);
    status = stopwatch_mark(self->watch, FETCHED);
    if (status == 0)
        status = tell(self->told[ENDED], batch);
    else if (status > 0 && !stopwatch_counts(self->watch, batch))
        status = tell(self->told[COUNT], batch);
    if (status < 0)
        Py_CLEAR(batch);
    return batch;
}

/* `torch.autograd.backward` */

static int left(Hook *self, PyObject *Py_UNUSED(error))
{
    int status = stopwatch_mark(self->watch, BACKWARDED);
    return status ? status : tell(self->told[LEFT], NULL);
}

static PyObject *go_backward(PyObject *callable, PyObject *const *args, size_t num_args, PyObject *names)
{
    Hook *self = (Hook *)callable;
    PyObject *result = NULL, *tensors = named_or_first("tensors", args, num_args, names);
    int status = stopwatch_mark(self->watch, BACKWARD);
    if (status == 0)
        status = tell(self->told[BEGAN], tensors);
    else if (status > 0 && !stopwatch_takes_loss(self->watch, tensors))
        status = tell(self->told[NOTED], tensors);
    if (status >= 0)
        result = PyObject_Vectorcall(self->original, args, num_args, names);
    if (result == NULL)
        return leave_with_error(self, left);
    if (left(self, NULL) < 0)
        Py_CLEAR(result);
    return result;
}

/* What copies a tensor's value to Python */

static int has_read(Hook *self, PyObject *Py_UNUSED(error)) { return tell(self->told[HAS_READ], NULL); }

static PyObject *read_value(PyObject *callable, PyObject *const *args, size_t num_args, PyObject *names)
{
    Hook *self = (Hook *)callable;
    /* First what an optimizer on the CPU asks for every parameter of every step; and printing makes hundreds of reads. */
    if (stopwatch_reads_by_design(self->watch) || self->watch->is_reading)
        return PyObject_Vectorcall(self->original, args, num_args, names);
    PyObject *counts = PyObject_CallOneArg(self->told[BEGAN], named_or_first("input", args, num_args, names));
    Py_XDECREF(counts);
    if (counts == NULL)
        return NULL;
    if (counts != Py_True)
        return PyObject_Vectorcall(self->original, args, num_args, names);
    self->watch->is_reading = 1;
    PyObject *value = PyObject_Vectorcall(self->original, args, num_args, names);
    self->watch->is_reading = 0;
    if (value == NULL)
        return leave_with_error(self, has_read);
    if (has_read(self, NULL) < 0)
        Py_CLEAR(value);
    return value;
}

/* The type of all of them. */

static PyObject *make(Stopwatch *watch, PyObject *args, vectorcallfunc function, int num_told)
{
    if (PyTuple_GET_SIZE(args) != 1 + num_told) /* the original before them */
        return PyErr_Format(PyExc_TypeError, "%d functions are needed", 1 + num_told);
    Hook *self = PyObject_GC_New(Hook, &HookType);
    if (self == NULL)
        return NULL;
    self->vectorcall = function;
    self->watch = (Stopwatch *)Py_NewRef((PyObject *)watch);
    self->original = Py_NewRef(PyTuple_GET_ITEM(args, 0));
    for (int i = 0; i < MAX_TOLD; i++)
        self->told[i] = i < num_told ? Py_NewRef(PyTuple_GET_ITEM(args, 1 + i)) : NULL;
    self->dict = self->weak_references = NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

PyObject *stopwatch_fetching(Stopwatch *self, PyObject *args) { return make(self, args, fetch, 5); }
PyObject *stopwatch_going_backward(Stopwatch *self, PyObject *args) { return make(self, args, go_backward, 3); }
PyObject *stopwatch_reading(Stopwatch *self, PyObject *args) { return make(self, args, read_value, 2); }

static PyObject *Hook_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(type))
{
    return instance == NULL ? Py_NewRef(self) : PyMethod_New(self, instance);
}

/* As the original is: a function of Python's by its name. */
static PyObject *Hook_reduce(Hook *self, PyObject *Py_UNUSED(none))
{
    return PyFunction_Check(self->original) ? PyObject_GetAttrString((PyObject *)self, "__qualname__")
                                            : PyObject_CallMethod(self->original, "__reduce__", NULL);
}

static PyObject *original_of(PyObject *object)
{
    while (Py_IS_TYPE(object, &HookType))
        object = ((Hook *)object)->original;
    return object;
}

/* Tables of functions, as a tensor's subclass has of what it does itself, are made before a recording or outlive it:
 * in those it is the original. */
static PyObject *Hook_compare(PyObject *self, PyObject *other, int operation)
{
    return PyObject_RichCompare(original_of(self), original_of(other), operation);
}

static Py_hash_t Hook_hash(PyObject *self) { return PyObject_Hash(original_of(self)); }

static int Hook_traverse(Hook *self, visitproc visit, void *arg)
{
    Py_VISIT(self->watch);
    Py_VISIT(self->original);
    for (int i = 0; i < MAX_TOLD; i++)
        Py_VISIT(self->told[i]);
    Py_VISIT(self->dict);
    return 0;
}

/* Only what Python may have tied into a circle: a call that is under way needs the rest. */
static int Hook_clear(Hook *self)
{
    Py_CLEAR(self->dict);
    return 0;
}

static void Hook_dealloc(Hook *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Py_CLEAR(self->watch);
    Py_CLEAR(self->original);
    for (int i = 0; i < MAX_TOLD; i++)
        Py_CLEAR(self->told[i]);
    Py_CLEAR(self->dict);
    PyObject_GC_Del(self);
}

static PyMethodDef methods[] = {
    {"__reduce__", (PyCFunction)Hook_reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyGetSetDef attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

PyTypeObject HookType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "efprof.recorder.stopwatch.Hook",
    .tp_basicsize = sizeof(Hook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(Hook, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dictoffset = offsetof(Hook, dict),
    .tp_weaklistoffset = offsetof(Hook, weak_references),
    .tp_richcompare = Hook_compare,
    .tp_hash = Hook_hash,
    .tp_descr_get = Hook_get,
    .tp_dealloc = (destructor)Hook_dealloc,
    .tp_traverse = (traverseproc)Hook_traverse,
    .tp_clear = (inquiry)Hook_clear,
    .tp_methods = methods,
    .tp_getset = attributes,
};
