/* A stopwatch, and how a function put in torch's place tells it of a call. */
#ifndef EFPROF_STOPWATCH_H
#define EFPROF_STOPWATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <structmember.h>

/* Of pattern.py; odd codes end a stage. */
enum { FETCH, FETCHED, FORWARD, FORWARDED, BACKWARD, BACKWARDED, STEP, STEPPED, UPDATE, UPDATED, OTHER };
enum { MAX_MARKS = 24, NUM_FRAMES = 2 };
#define NAN_NORM (-INFINITY) /* stands for a gradient norm that is NaN, since NaN says that there is none */

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
    struct { void *code; int at; } frames[NUM_FRAMES];
    char is_known; /* whether Python has seen its loss, and that of this a number is all that is needed */
} Place;

typedef struct {
    PyObject_HEAD
    PyObject *unexpected, *full, *tensor, *float32, *next_sequence, *is_grad_enabled, *is_awaited;
    PyObject *flags;         /* what has torch's note of an export as an attribute */
    PyObject *canaries;      /* weak references to parameters, or None, by the optimizer's `id` */
    PyObject *gradient_norm; /* norm of this step's gradients before they were clipped, or None */
    PyObject *loss;          /* weak reference to the last one, or None */
    PyObject *handled;       /* the error that was being handled at the start; not owned, only compared */
    const struct Exchange *exchange; /* NULL where torch has none */
    uint64_t (*peek_sequence)(void); /* of torch's own library, as the next; NULL where they are asked through Python */
    _Bool (*has_grad_mode)(void);
    Py_buffer buffer;
    Pages *pages;
    Entry *entry;
    unsigned long thread;
    unsigned long inside; /* the thread that is within a call of a watched class of modules, or 0 */
    unsigned long long optimizers[MAX_MARKS]; /* by `id`; each at the place in the pattern where it steps */
    long long max_step_ns, write_after_ns, epoch_offset_ns, read_due, memory_due, number, sequence;
    double max_norm;      /* to which `gradient_norm` was clipped at most */
    double learning_rate; /* of the open step, NaN where none is known */
    int capacity, limit, at, nested;
    int last_update; /* its place in the pattern */
    char is_on, is_reading, takes_numbers, takes_clips;
    char is_due; /* whether the open step is to have all its gradients read */
    char lacks_norm; /* whether gradients of the open step were fine, and their norm is not known */
    char is_told; /* whether Python was asked to see to a loss of the open step */
    char are_hooks_in; /* those for all modules */
    Place places[MAX_MARKS]; /* where backward is called, by its place in the pattern */
} Stopwatch;

/* Takes note of a call: 1, or 0 where Python has to see to it, or -1 with what a signal's handler raised. */
int stopwatch_mark(Stopwatch *self, int code);

/* Whether a loader or an optimizer is running. */
int stopwatch_reads_by_design(const Stopwatch *self);

/* Whether torch exports a program. */
int stopwatch_is_exporting(Stopwatch *self);

/* Takes note of what a call was given or gave: 1, or 0 where Python has to see to it. */
int stopwatch_counts(Stopwatch *self, PyObject *batch);
int stopwatch_takes_loss(Stopwatch *self, PyObject *tensors, PyObject *gradients);
int stopwatch_takes_norm(Stopwatch *self, PyObject *norm, PyObject *max_norm);

/* The norm of one optimizer's gradients, NAN_NORM where it is NaN; or that they are fine and it is not known. */
void stopwatch_adds_norm(Stopwatch *self, double norm);
void stopwatch_lacks_norm(Stopwatch *self);

/* Python has seen to a loss: whether the next one at this place in the pattern may be taken here. */
void stopwatch_learns_loss(Stopwatch *self);

/* A watched module is called, which is a forward pass where it trains: as `stopwatch_mark`. */
int stopwatch_enters(Stopwatch *self, PyObject *module);

/* Of readings.c: what an object that is handed over has in it, which may be NULL where something failed. */
long long stopwatch_number_of(Stopwatch *self, PyObject *result);
int stopwatch_is_true(Stopwatch *self, PyObject *result);

/* Something failed that must not reach the training: leave it to the slower way, which is guarded. What a signal's
 * handler raised is the program's, which gets it as soon as Python goes on. Answers 0. */
int stopwatch_give_up(Stopwatch *self);

/* What torch offers for reading tensors, which it keeps for good; NULL where it is none that is known here. */
const struct Exchange *stopwatch_exchange_in(PyObject *capsule);

/* Reads a scalar of float32 on the CPU, of which it is known that nobody else has its memory, and that it is no negated
 * view; 0 for any other, and for what is not finite. */
int stopwatch_reads_scalar(Stopwatch *self, PyObject *tensor, double *value);

/* Whether the numbers of the open step are known, at an optimizer's call, without reading all gradients. */
int stopwatch_knows_numbers(Stopwatch *self, PyObject *optimizer);

typedef struct { PyObject **to; const char *text; } Name;
int stopwatch_intern(const Name *names, size_t num_names);
int stopwatch_prepare_readings(void);
int stopwatch_prepare_classes(void);

/* The error that is raised, which is not raised any more then; and raises it, and takes it over. */
PyObject *stopwatch_take_raised(void);
void stopwatch_raise(PyObject *error);

/* Methods of a stopwatch that make the functions to put in torch's place. */
PyObject *stopwatch_fetching(Stopwatch *self, PyObject *args);
PyObject *stopwatch_going_backward(Stopwatch *self, PyObject *args);
PyObject *stopwatch_reading(Stopwatch *self, PyObject *args);
PyObject *stopwatch_clipping(Stopwatch *self, PyObject *args);
PyObject *stopwatch_collecting(Stopwatch *self, PyObject *args);

/* Methods that have the calls of a function in C told, and no more; those of a class's modules, and of no class's. */
PyObject *stopwatch_watch_reader(Stopwatch *self, PyObject *args);
PyObject *stopwatch_leave_reader(Stopwatch *self, PyObject *none);
PyObject *stopwatch_watch_class(Stopwatch *self, PyObject *args);
PyObject *stopwatch_leave_classes(Stopwatch *self, PyObject *kinds);

extern PyTypeObject HookType;

#endif
