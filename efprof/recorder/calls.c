/* The functions that are put in torch's place for calls which every step makes: they tell a stopwatch and call what was
 * there. In Python they cost a step half as much again (measured); and where no compiler looks into them, no frame of
 * ours stands in a traceback. `NoStopwatch` of stopwatches.py says in Python what they do besides.
 *
 * An optimizer's hooks stay in Python, and a function in Python stands before the one for clipping: torch.compile goes
 * through them, and would break its graph at a function in C.
 */
#include "hooks.h"

enum { BEGAN };                                          /* first of all of them */
enum { ENDED = 1, COUNT = 2, EXHAUSTED = 3, BROKE_OFF = 4 }; /* of a fetch */
enum { NOTED = 1, LEFT = 2 };                            /* of a call of backward */
enum { HAS_READ = 1 };                                   /* of a read */
enum { TAKEN = 2 };                                      /* of a clipping, which has BEGAN and ENDED, too */

/* The one at this place or of this name, not owned; None where neither was given. */
static PyObject *argument(Py_ssize_t at, const char *name, PyObject *const *args, size_t num_args, PyObject *names)
{
    Py_ssize_t num_positional = PyVectorcall_NARGS(num_args);
    if (at < num_positional)
        return args[at];
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), name) == 0)
            return args[num_positional + i];
    return Py_None;
}

static int has_both_arguments(PyObject *const *args, size_t num_args)
{
    return PyVectorcall_NARGS(num_args) == 2 && PyTuple_Check(args[0]) && PyDict_Check(args[1]);
}

/* `_BaseDataLoaderIter.__next__` */

static int broke_off(Hook *self, PyObject *Py_UNUSED(error)) { return hook_tell(self->told[BROKE_OFF], NULL); }

static int gave_nothing(Hook *self, PyObject *error)
{
    if (PyErr_GivenExceptionMatches(error, PyExc_StopIteration) && hook_tell(self->told[EXHAUSTED], NULL) < 0) {
        hook_leave_with_error(self, broke_off);
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
        status = hook_tell(self->told[BEGAN], args[0]);
    if (status >= 0)
        batch = PyObject_Vectorcall(self->original, args, num_args, names);
    if (batch == NULL)
        return hook_leave_with_error(self, gave_nothing);
    status = stopwatch_mark(self->watch, FETCHED);
    if (status == 0)
        status = hook_tell(self->told[ENDED], batch);
    else if (status > 0 && !stopwatch_counts(self->watch, batch))
        status = hook_tell(self->told[COUNT], batch);
    if (status < 0)
        Py_CLEAR(batch);
    return batch;
}

/* `torch.autograd.backward` */

static int left(Hook *self, PyObject *Py_UNUSED(error))
{
    int status = stopwatch_mark(self->watch, BACKWARDED);
    return status ? status : hook_tell(self->told[LEFT], NULL);
}

static int tell_of_pass(PyObject *function, PyObject *tensors, PyObject *gradients)
{
    PyObject *result = PyObject_CallFunctionObjArgs(function, tensors, gradients, NULL);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static PyObject *go_backward(PyObject *callable, PyObject *const *args, size_t num_args, PyObject *names)
{
    Hook *self = (Hook *)callable;
    PyObject *result = NULL, *tensors = argument(0, "tensors", args, num_args, names);
    PyObject *gradients = argument(1, "grad_tensors", args, num_args, names);
    if (gradients == Py_None)
        gradients = argument(4, "grad_variables", args, num_args, names); /* its old name */
    int status = stopwatch_mark(self->watch, BACKWARD);
    if (status == 0)
        status = tell_of_pass(self->told[BEGAN], tensors, gradients);
    else if (status > 0 && !stopwatch_takes_loss(self->watch, tensors, gradients)) {
        status = tell_of_pass(self->told[NOTED], tensors, gradients);
        stopwatch_learns_loss(self->watch);
    }
    if (status >= 0)
        result = PyObject_Vectorcall(self->original, args, num_args, names);
    if (result == NULL)
        return hook_leave_with_error(self, left);
    if (left(self, NULL) < 0)
        Py_CLEAR(result);
    return result;
}

/* What copies a tensor's value to Python */

static int has_read(Hook *self, PyObject *Py_UNUSED(error)) { return hook_tell(self->told[HAS_READ], NULL); }

static PyObject *read_value(PyObject *callable, PyObject *const *args, size_t num_args, PyObject *names)
{
    Hook *self = (Hook *)callable;
    /* First what an optimizer on the CPU asks for every parameter of every step; and printing makes hundreds of reads. */
    if (stopwatch_reads_by_design(self->watch) || self->watch->is_reading)
        return PyObject_Vectorcall(self->original, args, num_args, names);
    PyObject *counts = PyObject_CallOneArg(self->told[BEGAN], argument(0, "input", args, num_args, names));
    Py_XDECREF(counts);
    if (counts == NULL)
        return NULL;
    if (counts != Py_True)
        return PyObject_Vectorcall(self->original, args, num_args, names);
    self->watch->is_reading = 1;
    PyObject *value = PyObject_Vectorcall(self->original, args, num_args, names);
    self->watch->is_reading = 0;
    if (value == NULL)
        return hook_leave_with_error(self, has_read);
    if (has_read(self, NULL) < 0)
        Py_CLEAR(value);
    return value;
}

/* The same for a function of torch's in C, which stays where it is, in the program's tables, too: Python calls it through
 * a pointer in it, which is free where it takes a tuple and a dictionary.
 */

static Hook *reader; /* of the one function there is */

static PyObject *read_by_function(PyObject *callable, PyObject *const *args, size_t num_args, PyObject *names)
{
    PyCFunctionObject *function = (PyCFunctionObject *)callable;
    Hook *self = (Hook *)Py_NewRef((PyObject *)reader); /* the recording may end within the call */
    function->vectorcall = NULL;
    PyObject *value = read_value((PyObject *)self, args, num_args, names);
    if (reader == self)
        function->vectorcall = read_by_function;
    Py_DECREF(self);
    return value;
}

PyObject *stopwatch_watch_reader(Stopwatch *self, PyObject *args)
{
    PyObject *made = hook_make(self, args, NULL, 2);
    if (made == NULL)
        return NULL;
    PyCFunctionObject *function = (PyCFunctionObject *)((Hook *)made)->original;
    int is_watched = reader == NULL && PyCFunction_CheckExact((PyObject *)function) && function->vectorcall == NULL;
    if (is_watched) {
        function->vectorcall = read_by_function;
        reader = (Hook *)Py_NewRef(made);
    }
    Py_DECREF(made);
    return PyBool_FromLong(is_watched);
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
 * What Python calls for it is put in the place of the class's `tp_call`, and its dictionary stays as it is: to whoever
 * pickles, compiles, traces or asks the class nothing has changed. Whoever sets `__call__` in it or above it puts Python's
 * own function back, by Python's own ways.
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
    /* The hooks for all modules see this call already; what is exported must not contain ours; and of modules of watched
     * classes within one another it is the outermost that counts. */
    if (self == NULL || self->watch->are_hooks_in || self->watch->inside == thread || stopwatch_is_exporting(self->watch))
        return call_in_python(module, args, kwargs);
    self->watch->inside = thread;
    Py_INCREF(self); /* the recording may end within the call */
    PyObject *result = call_told(self, module, args, kwargs);
    Py_DECREF(self);
    return result;
}

PyObject *stopwatch_watch_class(Stopwatch *self, PyObject *args)
{
    PyObject *made = hook_make(self, args, NULL, 2);
    if (made == NULL)
        return NULL;
    PyTypeObject *kind = (PyTypeObject *)((Hook *)made)->original;
    int is_watched = PyType_Check((PyObject *)kind) && (kind->tp_call == call_in_python || kind->tp_call == call_module);
    if (is_watched) {
        kind->tp_call = call_module;
        Py_XSETREF(entrance, (Hook *)Py_NewRef(made));
    }
    Py_DECREF(made);
    return PyBool_FromLong(is_watched);
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

int stopwatch_prepare_calls(void)
{
    PyObject *kind = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){s:O}", "Called", "__call__", Py_None);
    if (kind == NULL)
        return -1;
    call_in_python = ((PyTypeObject *)kind)->tp_call;
    Py_DECREF(kind);
    return 0;
}

/* `clip_grad_norm_`, whose arguments come as a tuple and a dictionary */

static int clipped(Hook *self, PyObject *Py_UNUSED(error))
{
    int status = stopwatch_mark(self->watch, UPDATED);
    return status ? status : hook_tell(self->told[ENDED], NULL);
}

/* Not owned. */
static PyObject *max_norm_of(PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) > 1)
        return PyTuple_GET_ITEM(args, 1);
    PyObject *named = PyDict_GetItemString(kwargs, "max_norm");
    return named == NULL ? Py_None : named;
}

static PyObject *clip(PyObject *callable, PyObject *const *args, size_t num_args, PyObject *Py_UNUSED(names))
{
    Hook *self = (Hook *)callable;
    PyObject *norm = NULL;
    if (!has_both_arguments(args, num_args))
        return PyErr_Format(PyExc_TypeError, "a tuple of arguments and a dictionary of named ones are needed");
    int status = stopwatch_mark(self->watch, UPDATE);
    if (status == 0)
        status = hook_tell(self->told[BEGAN], NULL);
    if (status >= 0)
        norm = PyObject_Call(self->original, args[0], args[1]);
    if (norm == NULL)
        return hook_leave_with_error(self, clipped);
    status = stopwatch_mark(self->watch, UPDATED);
    int is_taken = status > 0 && stopwatch_takes_norm(self->watch, norm, max_norm_of(args[0], args[1]));
    if (status == 0)
        status = hook_tell(self->told[ENDED], NULL);
    if (status >= 0 && !is_taken) {
        PyObject *result = PyObject_CallFunctionObjArgs(self->told[TAKEN], norm, args[0], args[1], NULL);
        status = result ? 0 : -1;
        Py_XDECREF(result);
    }
    if (status < 0)
        Py_CLEAR(norm);
    return norm;
}

/* What the garbage collector calls: Python would print what it raises, and a signal's handler may raise within it. */

static PyObject *collect(PyObject *callable, PyObject *const *args, size_t num_args, PyObject *names)
{
    Hook *self = (Hook *)callable;
    PyObject *result = PyObject_Vectorcall(self->original, args, num_args, names);
    if (result != NULL)
        return result;
    stopwatch_give_up(self->watch);
    Py_RETURN_NONE;
}

PyObject *stopwatch_fetching(Stopwatch *self, PyObject *args) { return hook_make(self, args, fetch, 5); }
PyObject *stopwatch_going_backward(Stopwatch *self, PyObject *args) { return hook_make(self, args, go_backward, 3); }
PyObject *stopwatch_reading(Stopwatch *self, PyObject *args) { return hook_make(self, args, read_value, 2); }
PyObject *stopwatch_clipping(Stopwatch *self, PyObject *args) { return hook_make(self, args, clip, 3); }
PyObject *stopwatch_collecting(Stopwatch *self, PyObject *args) { return hook_make(self, args, collect, 0); }
