/* What stopwatch.c and hooks.c share: a stopwatch, and how a function put in torch's place tells it of a call. */
#ifndef EFPROF_STOPWATCH_H
#define EFPROF_STOPWATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* Of pattern.py; odd codes end a stage. */
enum { FETCH, FETCHED, FORWARD, FORWARDED, BACKWARD, BACKWARDED, STEP, STEPPED, OTHER = 10 };
enum { MAX_MARKS = 24, NUM_FRAMES = 2 };

typedef struct {
    int64_t number, epoch_ns, start_ns, end_ns, samples, num_losses, sequence;
    double loss, gradient_norm, learning_rate; /* NaN where there is none */
    int64_t instants[MAX_MARKS];
} Entry;

typedef struct {
    int64_t count, num_codes;
    int8_t codes[MAX_MARKS];
    Entry entries[];
} Pages;

typedef struct {
    PyObject_HEAD
    PyObject *unexpected, *full, *tensor, *float32, *next_sequence, *is_grad_enabled, *is_awaited;
    PyObject *canary;        /* weak reference to a parameter, or None */
    PyObject *gradient_norm; /* what this step's gradients were clipped by, or None */
    PyObject *loss;          /* weak reference to the last one, or None */
    PyObject *handled;       /* the error that was being handled at the start; not owned, only compared */
    const struct Exchange *exchange; /* NULL where torch has none */
    Py_buffer buffer;
    Pages *pages;
    Entry *entry;
    unsigned long thread;
    unsigned long long optimizer; /* by its `id` */
    long long max_step_ns, write_after_ns, epoch_offset_ns, read_due, memory_due, number, sequence;
    int capacity, limit, at, nested;
    char is_on, is_reading, takes_numbers, takes_clips;
    struct { void *code; int at; } place[NUM_FRAMES];
} Stopwatch;

/* Takes note of a call: 1, or 0 where Python has to see to it, or -1 with what a signal's handler raised. */
int stopwatch_mark(Stopwatch *self, int code);

/* Whether a loader or an optimizer is running. */
int stopwatch_reads_by_design(const Stopwatch *self);

/* Takes note of what a call was given or gave: 1, or 0 where Python has to see to it. */
int stopwatch_counts(Stopwatch *self, PyObject *batch);
int stopwatch_takes_loss(Stopwatch *self, PyObject *tensors);

/* The error that is raised, which is not raised any more then; and raises it, and takes it over. */
PyObject *stopwatch_take_raised(void);
void stopwatch_raise(PyObject *error);

/* Methods of a stopwatch that make the functions to put in torch's place. */
PyObject *stopwatch_fetching(Stopwatch *self, PyObject *args);
PyObject *stopwatch_going_backward(Stopwatch *self, PyObject *args);
PyObject *stopwatch_reading(Stopwatch *self, PyObject *args);

extern PyTypeObject HookType;

#endif
