/* What hooks.c, calls.c and watched.c share: a function put in torch's place, and how Python's functions are told of a
 * call. */
#ifndef EFPROF_HOOKS_H
#define EFPROF_HOOKS_H

#include "stopwatch.h"

enum { MAX_TOLD = 5 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Stopwatch *watch;
    PyObject *original;
    PyObject *told[MAX_TOLD]; /* functions in Python, by the names in calls.c and watched.c */
    PyObject *dict, *weak_references;
} Hook;

/* A hook that runs `function`; `args` are the original and `num_told` functions. */
PyObject *hook_make(Stopwatch *watch, PyObject *args, vectorcallfunc function, int num_told);

/* Calls a function of Python's with one argument, or with none where that is NULL: 0, or -1 where it raised. */
int hook_tell(PyObject *function, PyObject *argument);

/* Calls `leave` as a `finally` is run: the error is being handled, and raised again unless `leave` raises another. */
PyObject *hook_leave_with_error(Hook *self, int (*leave)(Hook *, PyObject *));

#endif
