/* The type of the functions that are put in torch's place, and how they tell Python's functions of a call.
 *
 * What is handed to them from Python is guarded: it raises only what a signal's handler raises.
 */
#include "hooks.h"

int hook_tell(PyObject *function, PyObject *argument)
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

PyObject *hook_leave_with_error(Hook *self, int (*leave)(Hook *, PyObject *))
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

/* The type of all of them. */

PyObject *hook_make(Stopwatch *watch, PyObject *args, vectorcallfunc function, int num_told)
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
