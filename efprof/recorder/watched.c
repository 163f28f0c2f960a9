/* Calls of what stays where it is, since nothing may be put in its place: a function of torch's in C, and modules. */
#include "hooks.h"

enum { BEGAN, ENDED }; /* of a module's call */

/* Keeps the hook that tells of them, where they can be watched, which is the answer. */
static PyObject *keep(Hook **kept, Hook *made, int is_watched)
{
    if (is_watched)
        Py_XSETREF(*kept, made);
    else
        Py_DECREF(made);
    return PyBool_FromLong(is_watched);
}

/* A function of torch's in C that copies a tensor's value to Python: it is in the program's tables, too. Python calls
 * it through a pointer in it, which is free where it takes a tuple and a dictionary.
 */

static Hook *reader; /* whom to tell of the one function there is */

static PyObject *read_by_function(PyObject *callable, PyObject *const *args, size_t num_args, PyObject *names)
{
    PyCFunctionObject *function = (PyCFunctionObject *)callable;
    Hook *self = (Hook *)Py_NewRef((PyObject *)reader); /* the recording may end within the call */
    function->vectorcall = NULL;
    PyObject *value = self->vectorcall((PyObject *)self, args, num_args, names);
    if (reader == self)
        function->vectorcall = read_by_function;
    Py_DECREF(self);
    return value;
}

PyObject *stopwatch_watch_reader(Stopwatch *self, PyObject *args)
{
    Hook *made = (Hook *)stopwatch_reading(self, args);
    if (made == NULL)
        return NULL;
    PyCFunctionObject *function = (PyCFunctionObject *)made->original;
    int is_watched = reader == NULL && PyCFunction_CheckExact(made->original) && function->vectorcall == NULL;
    if (is_watched)
        function->vectorcall = read_by_function;
    return keep(&reader, made, is_watched);
}

PyObject *stopwatch_leave_reader(Stopwatch *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    if (reader != NULL)
        ((PyCFunctionObject *)reader->original)->vectorcall = NULL;
    Py_CLEAR(reader);
    Py_RETURN_NONE;
}

/* A call of a module of a watched class.
 *
 * The class's `tp_call`, which is what Python calls for it, is replaced, and its dictionary stays as it is: to whoever
 * pickles, compiles, traces or asks the class nothing has changed. Whoever sets `__call__` in it or above it puts
 * Python's own function back, by Python's own ways.
 */

static ternaryfunc call_in_python; /* `tp_call` of every class whose `__call__` Python looks up at each call */
static Hook *entrance;             /* whom to tell of all the classes */

static int left_module(Hook *self, PyObject *Py_UNUSED(error))
{
    self->watch->inside = 0;
    int status = stopwatch_mark(self->watch, FORWARDED);
    return status ? status : hook_tell(self->told[ENDED], NULL);
}

static PyObject *call_told(Hook *self, PyObject *module, PyObject *args, PyObject *kwargs)
{
    PyObject *result = NULL;
    int status = stopwatch_enters(self->watch, module);
    if (status == 0)
        status = hook_tell(self->told[BEGAN], module);
    if (status >= 0)
        result = call_in_python(module, args, kwargs);
    if (result == NULL)
        return hook_leave_with_error(self, left_module);
    if (left_module(self, NULL) < 0)
        Py_CLEAR(result);
    return result;
}

static PyObject *call_module(PyObject *module, PyObject *args, PyObject *kwargs)
{
    Hook *self = entrance;
    unsigned long thread = PyThread_get_thread_ident();
    Stopwatch *watch = self ? self->watch : NULL;
    /* The hooks for all modules see this call already; what is exported must not contain ours; and of modules of
     * watched classes within one another it is the outermost that counts. */
    if (watch == NULL || watch->are_hooks_in || watch->inside == thread || stopwatch_is_exporting(watch))
        return call_in_python(module, args, kwargs);
    watch->inside = thread;
    Py_INCREF(self); /* the recording may end within the call */
    PyObject *result = call_told(self, module, args, kwargs);
    Py_DECREF(self);
    return result;
}

PyObject *stopwatch_watch_class(Stopwatch *self, PyObject *args)
{
    Hook *made = (Hook *)hook_make(self, args, NULL, 2);
    if (made == NULL)
        return NULL;
    PyTypeObject *kind = (PyTypeObject *)made->original;
    int is_watched = PyType_Check(made->original) && (kind->tp_call == call_in_python || kind->tp_call == call_module);
    if (is_watched)
        kind->tp_call = call_module;
    return keep(&entrance, made, is_watched);
}

PyObject *stopwatch_leave_classes(Stopwatch *self, PyObject *kinds)
{
    self->inside = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kinds); i++) {
        PyTypeObject *kind = (PyTypeObject *)PyTuple_GET_ITEM(kinds, i);
        if (PyType_Check((PyObject *)kind) && kind->tp_call == call_module)
            kind->tp_call = call_in_python;
    }
    Py_CLEAR(entrance);
    Py_RETURN_NONE;
}

int stopwatch_prepare_classes(void)
{
    PyObject *kind = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){s:O}", "Called", "__call__", Py_None);
    if (kind == NULL)
        return -1;
    call_in_python = ((PyTypeObject *)kind)->tp_call;
    Py_DECREF(kind);
    return 0;
}
