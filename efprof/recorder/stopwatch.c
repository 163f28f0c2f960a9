/* Takes the instants and numbers of short steps, for sprint.py: what runs in here costs a training step with cold
 * caches a tenth of what the same costs in Python. Nothing in here decides anything: whatever is not as in the step
 * before is left to Python, by calling `unexpected` or by answering False. No call raises but `use` and `start`, and
 * `mark` what a signal's handler raises. What one raises within Python that torch calls for an attribute, as under a
 * default device, is raised as soon as Python goes on.
 *
 * A step is written straight into the pages of steps.pending, laid out as in efprof/artifacts/pending.py.
 */
#include "stopwatch.h"
#include <time.h>

#ifndef __linux__
#error "time.perf_counter_ns is this clock on Linux only"
#endif

static PyObject *s_shape, *s_training, *s_is_compiling;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static PyObject *answer(int is_true) { return PyBool_FromLong(is_true); }

/* Python's guarded functions never raise, but a signal's handler may, within them: then that is raised here too. */
static int ask(PyObject *function, int code)
{
    PyObject *number = PyLong_FromLong(code); /* small ones exist already */
    PyObject *result = PyObject_CallOneArg(function, number);
    Py_DECREF(number);
    Py_XDECREF(result);
    return result == NULL ? -1 : result == Py_True;
}

static void note_sequence(Stopwatch *self)
{
    long long number = self->peek_sequence ? (long long)self->peek_sequence()
                                           : stopwatch_number_of(self, PyObject_CallNoArgs(self->next_sequence));
    self->entry->sequence = self->sequence = number;
}

static void begin(Stopwatch *self, int64_t at)
{
    Entry *entry = self->entry = &self->pages->entries[self->pages->count];
    entry->number = ++self->number;
    entry->start_ns = entry->instants[0] = at;
    entry->epoch_ns = at + self->epoch_offset_ns;
    entry->samples = entry->num_losses = 0;
    entry->sequence = self->sequence = -1;
    entry->loss = 0.0;
    entry->gradient_norm = entry->learning_rate = self->learning_rate = NAN;
    self->at = 1;
    self->nested = 0;
    self->is_told = self->lacks_norm = 0;
    self->is_due = self->number >= self->read_due; /* for all optimizers alike: reading for one puts it off */
    if (self->pages->codes[0] == FORWARD)
        note_sequence(self);
    Py_XSETREF(self->gradient_norm, Py_NewRef(Py_None));
    Py_XSETREF(self->loss, Py_NewRef(Py_None));
}

static int end_step(Stopwatch *self, int code)
{
    int64_t now = now_ns();
    Pages *pages = self->pages;
    self->entry->end_ns = now;
    __atomic_store_n(&pages->count, pages->count + 1, __ATOMIC_RELEASE); /* what it counts is whole by now */
    if (pages->count >= self->limit || now - self->entry->start_ns >= self->max_step_ns ||
        now - pages->entries[0].start_ns >= self->write_after_ns) {
        self->is_on = 0; /* whatever `full` does, there may be no room for another step */
        return ask(self->full, code);
    }
    begin(self, now);
    return 1;
}

static PyObject *handled_error(void)
{
    PyObject *error = PyErr_GetHandledException();
    Py_XDECREF(error); /* whoever handles it keeps it alive */
    return error;
}

int stopwatch_mark(Stopwatch *self, int code)
{
    if (PyThread_get_thread_ident() != self->thread)
        return 0;
    if (!self->is_on)
        return ask(self->unexpected, code);
    int at = self->at;
    const int8_t *codes = self->pages->codes;
    if (at == self->pages->num_codes)
        return code == codes[0] ? end_step(self, code) : ask(self->unexpected, code);
    if (code == FORWARD && codes[at - 1] == FORWARD) {
        self->nested++;
        return 1;
    }
    if (code != codes[at])
        return ask(self->unexpected, code);
    if (code & 1) {
        if (code == FORWARDED && self->nested) {
            self->nested--;
            return 1;
        }
        PyObject *error = handled_error();
        if (error != NULL && error != self->handled) /* seen from the `finally` of a hook: it ends the stage */
            return ask(self->unexpected, OTHER);
    }
    if (code == FORWARD && self->sequence < 0)
        note_sequence(self);
    self->entry->instants[at] = now_ns();
    self->at = at + 1;
    return 1;
}

static PyObject *Stopwatch_mark(Stopwatch *self, PyObject *code)
{
    int status = stopwatch_mark(self, (int)PyLong_AsLong(code));
    return status < 0 ? NULL : answer(status);
}

/* Whether backward is called from where it was called at this place in the last step: by the user's function, or by
 * that through `Tensor.backward`. */
static int is_same_place(Place *place)
{
    PyFrameObject *frame = PyEval_GetFrame();
    int is_same = 1;
    Py_XINCREF(frame);
    for (int i = 0; i < NUM_FRAMES && frame != NULL; i++) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        int at = PyFrame_GetLasti(frame);
        is_same &= place->frames[i].code == code && place->frames[i].at == at;
        place->frames[i].code = code;
        place->frames[i].at = at;
        Py_DECREF(code);
        PyFrameObject *back = i + 1 < NUM_FRAMES ? PyFrame_GetBack(frame) : NULL;
        Py_SETREF(frame, back);
    }
    Py_XDECREF(frame);
    return is_same;
}

int stopwatch_counts(Stopwatch *self, PyObject *batch)
{
    PyObject *first = batch;
    if (!self->is_on)
        return 0;
    if (PyTuple_Check(batch) && PyTuple_GET_SIZE(batch))
        first = PyTuple_GET_ITEM(batch, 0);
    else if (PyList_Check(batch) && PyList_GET_SIZE(batch))
        first = PyList_GET_ITEM(batch, 0);
    if ((PyObject *)Py_TYPE(first) != self->tensor)
        return 0;
    PyObject *shape = PyObject_GetAttr(first, s_shape);
    int has_dimension = shape != NULL && PyTuple_Check(shape) && PyTuple_GET_SIZE(shape) > 0;
    long long samples = has_dimension ? stopwatch_number_of(self, Py_NewRef(PyTuple_GET_ITEM(shape, 0))) : 0;
    Py_XDECREF(shape);
    stopwatch_give_up(self);
    if (!self->is_on) /* what was called may have been Python, and have ended the recording: so everywhere below */
        return 0;
    self->entry->samples += samples;
    return has_dimension;
}

static int takes_loss(Stopwatch *self, PyObject *tensors, PyObject *gradients)
{
    double value;
    PyObject *loss = tensors;
    Place *place = &self->places[self->at - 1];
    /* The place first: it has to be that of the last call, whoever takes its loss. */
    int is_as_before = is_same_place(place) && place->is_known;
    if (!is_as_before || self->is_told || !self->takes_numbers || gradients != Py_None)
        return 0;
    if (PyTuple_Check(tensors) && PyTuple_GET_SIZE(tensors) == 1)
        loss = PyTuple_GET_ITEM(tensors, 0);
    else if (PyList_Check(tensors) && PyList_GET_SIZE(tensors) == 1)
        loss = PyList_GET_ITEM(tensors, 0);
    Py_INCREF(loss); /* torch may let other threads run */
    int is_read = stopwatch_reads_scalar(self, loss, &value) && self->is_on;
    if (is_read) {
        self->entry->loss += value;
        self->entry->num_losses++;
        PyObject *weak = PyWeakref_NewRef(loss, NULL);
        if (weak == NULL)
            stopwatch_give_up(self);
        else
            Py_XSETREF(self->loss, weak);
    }
    Py_DECREF(loss);
    return is_read;
}

int stopwatch_takes_loss(Stopwatch *self, PyObject *tensors, PyObject *gradients)
{
    if (!self->is_on)
        return 0;
    int is_taken = takes_loss(self, tensors, gradients);
    /* Of several passes the last one's line is the step's: once Python has seen one, it has to see those after it. */
    self->is_told |= !is_taken;
    return is_taken;
}

void stopwatch_learns_loss(Stopwatch *self)
{
    if (self->is_on)
        self->places[self->at - 1].is_known = self->takes_numbers;
}

static PyObject *Stopwatch_counted(Stopwatch *self, PyObject *batch) { return answer(stopwatch_counts(self, batch)); }

int stopwatch_takes_norm(Stopwatch *self, PyObject *norm, PyObject *max_norm)
{
    if (!self->is_on || !self->takes_clips || (PyObject *)Py_TYPE(norm) != self->tensor ||
        !(PyFloat_Check(max_norm) || PyLong_Check(max_norm)))
        return 0;
    self->max_norm = PyFloat_AsDouble(max_norm);
    stopwatch_give_up(self);
    Py_XSETREF(self->gradient_norm, Py_NewRef(norm));
    return 1;
}

/* The step's norm is that of all its optimizers' gradients; where one's is not known, only bad ones are said. */

void stopwatch_adds_norm(Stopwatch *self, double norm)
{
    double others = self->entry->gradient_norm;
    if (norm == NAN_NORM || others == NAN_NORM)
        self->entry->gradient_norm = NAN_NORM;
    else if (!self->lacks_norm || !isfinite(norm))
        self->entry->gradient_norm = isnan(others) ? norm : hypot(others, norm);
}

void stopwatch_lacks_norm(Stopwatch *self)
{
    self->lacks_norm = 1;
    if (isfinite(self->entry->gradient_norm))
        self->entry->gradient_norm = NAN;
}

/* What Python has found out of the open step, which is noted with the step as well: the process may be killed. */

static PyObject *noted(Stopwatch *self, PyObject *value, void (*note)(Stopwatch *, double))
{
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred())
        return NULL;
    if (self->is_on)
        note(self, number);
    return answer(self->is_on);
}

static void adds_loss(Stopwatch *self, double loss)
{
    self->entry->loss += loss;
    self->entry->num_losses++;
}

static void notes_rate(Stopwatch *self, double rate) { self->entry->learning_rate = self->learning_rate = rate; }

static PyObject *Stopwatch_add_loss(Stopwatch *self, PyObject *loss) { return noted(self, loss, adds_loss); }

static PyObject *Stopwatch_note_norm(Stopwatch *self, PyObject *norm) { return noted(self, norm, stopwatch_adds_norm); }

static PyObject *Stopwatch_note_rate(Stopwatch *self, PyObject *rate) { return noted(self, rate, notes_rate); }

/* Of the arguments of `Optimizer.step`, itself among them. */
static int has_closure(PyObject *args, PyObject *kwargs)
{
    PyObject *closure = PyTuple_Check(args) && PyTuple_GET_SIZE(args) > 1 ? PyTuple_GET_ITEM(args, 1) : NULL;
    if (closure == NULL && PyDict_Check(kwargs) && PyDict_GET_SIZE(kwargs))
        closure = PyDict_GetItemString(kwargs, "closure");
    return closure != NULL && closure != Py_None;
}

/* None where Python has to see to the step, False where it has to see to what besides belongs to it. */
static PyObject *answer_of(int status, int knows_the_rest)
{
    if (status < 0)
        return NULL;
    return status == 0 ? Py_NewRef(Py_None) : answer(knows_the_rest);
}

static PyObject *Stopwatch_updates(Stopwatch *self, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 3)
        return PyErr_Format(PyExc_TypeError, "updates takes an optimizer, its step's arguments and the named ones");
    int status = stopwatch_mark(self, has_closure(args[1], args[2]) ? OTHER : STEP);
    return answer_of(status, status > 0 && stopwatch_knows_numbers(self, args[0]));
}

static PyObject *Stopwatch_updated(Stopwatch *self, PyObject *Py_UNUSED(none))
{
    int status = stopwatch_mark(self, STEPPED);
    return answer_of(status, self->number < self->memory_due || self->at <= self->last_update);
}

int stopwatch_reads_by_design(const Stopwatch *self)
{
    int code = self->is_on ? self->pages->codes[self->at - 1] : OTHER;
    return code == FETCH || code == STEP;
}

int stopwatch_enters(Stopwatch *self, PyObject *module)
{
    PyObject *training = PyObject_GetAttr(module, s_training);
    int trains = training != NULL && PyObject_IsTrue(training) > 0;
    stopwatch_give_up(self);
    Py_XDECREF(training);
    if (trains)
        trains = self->has_grad_mode ? self->has_grad_mode()
                                     : stopwatch_is_true(self, PyObject_CallNoArgs(self->is_grad_enabled));
    return stopwatch_mark(self, trains ? FORWARD : OTHER);
}

int stopwatch_is_exporting(Stopwatch *self)
{
    return stopwatch_is_true(self, PyObject_GetAttr(self->flags, s_is_compiling));
}

static PyObject *Stopwatch_use(Stopwatch *self, PyObject *buffer)
{
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0)
        return NULL;
    if (self->buffer.obj)
        PyBuffer_Release(&self->buffer);
    self->buffer = view;
    self->pages = view.buf;
    self->capacity = (int)((view.len - (Py_ssize_t)sizeof(Pages)) / (Py_ssize_t)sizeof(Entry));
    self->is_on = 0;
    Py_RETURN_NONE;
}

/* Where in the pattern which optimizer steps: they are given in their order. */
static void note_optimizers(Stopwatch *self, PyObject *optimizers)
{
    Py_ssize_t num_seen = 0;
    for (int at = 0; at < self->pages->num_codes; at++)
        if (self->pages->codes[at] == STEP && num_seen < PyTuple_GET_SIZE(optimizers)) {
            self->optimizers[at] = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(optimizers, num_seen++));
            self->last_update = at;
        }
}

static PyObject *Stopwatch_start(Stopwatch *self, PyObject *args)
{
    const char *codes;
    Py_ssize_t num_codes;
    PyObject *optimizers;
    long long number, at, epoch_offset;
    int limit;
    if (!PyArg_ParseTuple(args, "y#O!LLLi", &codes, &num_codes, &PyTuple_Type, &optimizers, &number, &at,
                          &epoch_offset, &limit))
        return NULL;
    if (self->pages == NULL || limit < 1 || limit > self->capacity || num_codes < 1 || num_codes > MAX_MARKS) {
        PyErr_SetString(PyExc_ValueError, "no pages, or a pattern or a limit that does not fit them");
        return NULL;
    }
    self->limit = limit;
    self->pages->count = 0;
    self->pages->num_codes = num_codes;
    memset(self->places, 0, sizeof(self->places));
    memcpy(self->pages->codes, codes, num_codes);
    note_optimizers(self, optimizers);
    self->number = number - 1;
    self->epoch_offset_ns = epoch_offset;
    self->handled = handled_error();
    self->is_on = 1;
    begin(self, at);
    Py_RETURN_NONE;
}

static PyObject *Stopwatch_stop(Stopwatch *self, PyObject *Py_UNUSED(none))
{
    self->is_on = 0;
    Py_RETURN_NONE;
}

static PyObject *Stopwatch_release(Stopwatch *self, PyObject *Py_UNUSED(none))
{
    self->is_on = 0;
    self->pages = NULL;
    self->entry = NULL;
    Py_XSETREF(self->gradient_norm, Py_NewRef(Py_None));
    if (self->buffer.obj)
        PyBuffer_Release(&self->buffer);
    Py_RETURN_NONE;
}

static int Stopwatch_traverse(Stopwatch *self, visitproc visit, void *arg)
{
    Py_VISIT(self->unexpected);
    Py_VISIT(self->full);
    Py_VISIT(self->tensor);
    Py_VISIT(self->float32);
    Py_VISIT(self->next_sequence);
    Py_VISIT(self->is_grad_enabled);
    Py_VISIT(self->is_awaited);
    Py_VISIT(self->flags);
    Py_VISIT(self->canaries);
    Py_VISIT(self->gradient_norm);
    Py_VISIT(self->loss);
    return 0;
}

/* Only what Python may have tied into a circle: a call from what is freed with it needs the rest. */
static int Stopwatch_clear(Stopwatch *self)
{
    self->is_on = 0;
    self->thread = 0;
    Py_CLEAR(self->unexpected);
    Py_CLEAR(self->full);
    Py_CLEAR(self->canaries);
    Py_CLEAR(self->gradient_norm);
    Py_CLEAR(self->loss);
    return 0;
}

static void Stopwatch_dealloc(Stopwatch *self)
{
    PyObject_GC_UnTrack(self);
    Stopwatch_clear(self);
    Py_CLEAR(self->tensor);
    Py_CLEAR(self->float32);
    Py_CLEAR(self->next_sequence);
    Py_CLEAR(self->is_grad_enabled);
    Py_CLEAR(self->is_awaited);
    Py_CLEAR(self->flags);
    if (self->buffer.obj)
        PyBuffer_Release(&self->buffer);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *Stopwatch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"unexpected", "full", "tensor", "float32", "next_sequence", "is_grad_enabled", "is_awaited",
                            "flags", "exchange", "sequence_at", "grad_mode_at", "max_step_ns", "write_after_ns", NULL};
    PyObject *unexpected, *full, *tensor, *float32, *next_sequence, *is_grad_enabled, *is_awaited, *flags, *capsule;
    unsigned long long sequence_at, grad_mode_at;
    long long max_step_ns, write_after_ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOOOOOOOOKKLL", names, &unexpected, &full, &tensor, &float32,
                                     &next_sequence, &is_grad_enabled, &is_awaited, &flags, &capsule,
                                     &sequence_at, &grad_mode_at, &max_step_ns, &write_after_ns))
        return NULL;
    Stopwatch *self = (Stopwatch *)type->tp_alloc(type, 0);
    if (self == NULL || (self->canaries = PyDict_New()) == NULL)
        return NULL;
    self->unexpected = Py_NewRef(unexpected);
    self->full = Py_NewRef(full);
    self->tensor = Py_NewRef(tensor);
    self->float32 = Py_NewRef(float32);
    self->next_sequence = Py_NewRef(next_sequence);
    self->is_grad_enabled = Py_NewRef(is_grad_enabled);
    self->is_awaited = Py_NewRef(is_awaited);
    self->flags = Py_NewRef(flags);
    self->gradient_norm = Py_NewRef(Py_None);
    self->loss = Py_NewRef(Py_None);
    self->exchange = stopwatch_exchange_in(capsule);
    self->peek_sequence = (uint64_t (*)(void))(uintptr_t)sequence_at;
    self->has_grad_mode = (_Bool (*)(void))(uintptr_t)grad_mode_at;
    self->thread = PyThread_get_thread_ident();
    self->takes_clips = 1;
    self->max_step_ns = max_step_ns;
    self->write_after_ns = write_after_ns;
    return (PyObject *)self;
}

static PyMethodDef methods[] = {
    {"mark", (PyCFunction)Stopwatch_mark, METH_O, NULL},
    {"counted", (PyCFunction)Stopwatch_counted, METH_O, NULL},
    {"fetching", (PyCFunction)stopwatch_fetching, METH_VARARGS, NULL},
    {"going_backward", (PyCFunction)stopwatch_going_backward, METH_VARARGS, NULL},
    {"reading", (PyCFunction)stopwatch_reading, METH_VARARGS, NULL},
    {"clipping", (PyCFunction)stopwatch_clipping, METH_VARARGS, NULL},
    {"collecting", (PyCFunction)stopwatch_collecting, METH_VARARGS, NULL},
    {"watch_reader", (PyCFunction)stopwatch_watch_reader, METH_VARARGS, NULL},
    {"leave_reader", (PyCFunction)stopwatch_leave_reader, METH_NOARGS, NULL},
    {"watch_class", (PyCFunction)stopwatch_watch_class, METH_VARARGS, NULL},
    {"leave_classes", (PyCFunction)stopwatch_leave_classes, METH_VARARGS, NULL},
    {"updates", (PyCFunction)(void (*)(void))Stopwatch_updates, METH_FASTCALL, NULL},
    {"updated", (PyCFunction)Stopwatch_updated, METH_NOARGS, NULL},
    {"add_loss", (PyCFunction)Stopwatch_add_loss, METH_O, NULL},
    {"note_norm", (PyCFunction)Stopwatch_note_norm, METH_O, NULL},
    {"note_rate", (PyCFunction)Stopwatch_note_rate, METH_O, NULL},
    {"use", (PyCFunction)Stopwatch_use, METH_O, NULL},
    {"start", (PyCFunction)Stopwatch_start, METH_VARARGS, NULL},
    {"stop", (PyCFunction)Stopwatch_stop, METH_NOARGS, NULL},
    {"release", (PyCFunction)Stopwatch_release, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef members[] = {
    {"is_on", T_BOOL, offsetof(Stopwatch, is_on), READONLY, NULL},
    {"at", T_INT, offsetof(Stopwatch, at), READONLY, NULL},
    {"nested", T_INT, offsetof(Stopwatch, nested), READONLY, NULL},
    {"sequence", T_LONGLONG, offsetof(Stopwatch, sequence), READONLY, NULL},
    {"number", T_LONGLONG, offsetof(Stopwatch, number), READONLY, NULL},
    {"thread", T_ULONG, offsetof(Stopwatch, thread), 0, NULL},
    {"limit", T_INT, offsetof(Stopwatch, limit), 0, NULL},
    {"memory_due", T_LONGLONG, offsetof(Stopwatch, memory_due), 0, NULL},
    {"read_due", T_LONGLONG, offsetof(Stopwatch, read_due), 0, NULL},
    {"takes_numbers", T_BOOL, offsetof(Stopwatch, takes_numbers), 0, NULL},
    {"are_hooks_in", T_BOOL, offsetof(Stopwatch, are_hooks_in), 0, NULL},
    {"takes_clips", T_BOOL, offsetof(Stopwatch, takes_clips), 0, NULL},
    {"learning_rate", T_DOUBLE, offsetof(Stopwatch, learning_rate), READONLY, NULL},
    {"canaries", T_OBJECT_EX, offsetof(Stopwatch, canaries), READONLY, NULL},
    {"loss", T_OBJECT_EX, offsetof(Stopwatch, loss), READONLY, NULL},
    {"gradient_norm", T_OBJECT_EX, offsetof(Stopwatch, gradient_norm), 0, NULL},
    {"max_norm", T_DOUBLE, offsetof(Stopwatch, max_norm), READONLY, NULL},
    {NULL},
};

static PyTypeObject StopwatchType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "efprof.recorder.stopwatch.Stopwatch",
    .tp_basicsize = sizeof(Stopwatch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Stopwatch_new,
    .tp_dealloc = (destructor)Stopwatch_dealloc,
    .tp_traverse = (traverseproc)Stopwatch_traverse,
    .tp_clear = (inquiry)Stopwatch_clear,
    .tp_methods = methods,
    .tp_members = members,
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "stopwatch", NULL, -1, NULL};

PyMODINIT_FUNC PyInit_stopwatch(void)
{
    const Name names[] = {
        {&s_shape, "shape"}, {&s_training, "training"}, {&s_is_compiling, "_is_compiling_flag"},
    };
    if (stopwatch_intern(names, sizeof(names) / sizeof(*names)) < 0 ||
        stopwatch_prepare_readings() < 0 || stopwatch_prepare_classes() < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && (PyType_Ready(&HookType) < 0 || PyModule_AddType(made, &StopwatchType) < 0))
        Py_CLEAR(made);
    return made;
}
