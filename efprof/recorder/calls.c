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
    /* First what an optimizer on the CPU asks for every parameter of every step; printing makes hundreds of reads. */
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

/* `clip_grad_norm_`, whose arguments come as a tuple and a dictionary */

static int clipped(Hook *self, PyObject *Py_UNUSED(error))
{
    int status = stopwatch_mark(self->watch, UPDATED);
    return status ? status : hook_tell(self->told[ENDED], NULL);
}

static int has_both_arguments(PyObject *const *args, size_t num_args)
{
    return PyVectorcall_NARGS(num_args) == 2 && PyTuple_Check(args[0]) && PyDict_Check(args[1]);
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
