/* What a stopwatch reads of tensors and optimizers, without waiting for anything. */
#include "stopwatch.h"

static PyObject *s_is_cpu, *s_dtype, *s_nbytes, *s_data_ptr, *s_is_neg, *s_storage_offset, *s_grad, *s_param_groups;
static PyObject *s_lr;

int stopwatch_intern(const Name *names, size_t num_names)
{
    for (size_t i = 0; i < num_names; i++)
        if ((*names[i].to = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    return 0;
}

int stopwatch_prepare_readings(void)
{
    const Name names[] = {
        {&s_is_cpu, "is_cpu"}, {&s_dtype, "dtype"}, {&s_nbytes, "nbytes"}, {&s_data_ptr, "data_ptr"},
        {&s_is_neg, "is_neg"}, {&s_storage_offset, "storage_offset"}, {&s_grad, "grad"},
        {&s_param_groups, "param_groups"}, {&s_lr, "lr"},
    };
    return stopwatch_intern(names, sizeof(names) / sizeof(*names));
}

static int raise_now(void *error)
{
    stopwatch_raise(error);
    return -1;
}

int stopwatch_give_up(Stopwatch *self)
{
    if (!PyErr_Occurred())
        return 0;
    PyObject *error = stopwatch_take_raised();
    PyObject *result = PyObject_CallOneArg(self->is_awaited, error);
    int is_awaited = result == Py_True;
    Py_XDECREF(result);
    PyErr_Clear();
    if (!is_awaited || Py_AddPendingCall(raise_now, error) < 0)
        Py_DECREF(error);
    return 0;
}

long long stopwatch_number_of(Stopwatch *self, PyObject *result)
{
    if (result == NULL)
        return stopwatch_give_up(self);
    long long number = PyLong_AsLongLong(result);
    Py_DECREF(result);
    if (number == -1 && PyErr_Occurred())
        return stopwatch_give_up(self);
    return number;
}

int stopwatch_is_true(Stopwatch *self, PyObject *result)
{
    if (result == NULL)
        return stopwatch_give_up(self);
    int is_it = result == Py_True;
    Py_DECREF(result);
    return is_it;
}

static int is_false(Stopwatch *self, PyObject *result)
{
    if (result == NULL)
        return stopwatch_give_up(self);
    Py_DECREF(result);
    return result == Py_False;
}

/* The layout of DLPack's `DLTensor` and of its `DLPackExchangeAPI`, of which torch 2.10 and later has one. */
typedef struct {
    void *data;
    int32_t device_type, device_id, num_dimensions;
    uint8_t type, num_bits;
    uint16_t num_lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Described;

struct Exchange {
    uint32_t major, minor;
    void *previous, *unused[3];
    int (*describe)(void *tensor, Described *described); /* asks no device, allocates nothing; may be missing */
};

enum { DLPACK_MAJOR = 1, DLPACK_CPU = 1, DLPACK_FLOAT = 2 };

const struct Exchange *stopwatch_exchange_in(PyObject *capsule)
{
    const struct Exchange *exchange = PyCapsule_IsValid(capsule, "dlpack_exchange_api")
                                          ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
                                          : NULL;
    return exchange && exchange->major == DLPACK_MAJOR && exchange->describe ? exchange : NULL;
}

static const float *described_floats(Stopwatch *self, PyObject *tensor, int is_scalar)
{
    Described described;
    if (self->exchange->describe(tensor, &described) < 0) {
        stopwatch_give_up(self);
        return NULL;
    }
    if (described.device_type != DLPACK_CPU || described.type != DLPACK_FLOAT || described.num_bits != 32 ||
        described.num_lanes != 1)
        return NULL;
    for (int i = 0; i < described.num_dimensions; i++)
        if (is_scalar ? described.shape[i] != 1 : described.shape[i] <= 0)
            return NULL;
    return (const float *)((const char *)described.data + described.byte_offset);
}

/* The same by torch's attributes, which are read rather than its methods called: their arguments cost it more to parse
 * than all the rest. */
static const float *floats_of(Stopwatch *self, PyObject *tensor, int is_scalar)
{
    if (!stopwatch_is_true(self, PyObject_GetAttr(tensor, s_is_cpu)))
        return NULL;
    PyObject *dtype = PyObject_GetAttr(tensor, s_dtype);
    stopwatch_give_up(self);
    Py_XDECREF(dtype); /* torch keeps it alive */
    long long num_bytes = stopwatch_number_of(self, PyObject_GetAttr(tensor, s_nbytes));
    if (dtype != self->float32 || (is_scalar ? num_bytes != sizeof(float) : num_bytes <= 0))
        return NULL;
    return (const float *)(uintptr_t)stopwatch_number_of(self, PyObject_CallMethodNoArgs(tensor, s_data_ptr));
}

/* Reads the first number of a float32 tensor on the CPU; 0 for any other, and for what is not finite. */
static int read_first(Stopwatch *self, PyObject *tensor, double *value, int is_scalar)
{
    if ((PyObject *)Py_TYPE(tensor) != self->tensor)
        return 0;
    const float *floats = self->exchange ? described_floats(self, tensor, is_scalar)
                                         : floats_of(self, tensor, is_scalar);
    if (floats == NULL || !isfinite(floats[0]))
        return 0;
    *value = floats[0];
    return 1;
}

int stopwatch_reads_scalar(Stopwatch *self, PyObject *tensor, double *value)
{
    return read_first(self, tensor, value, 1);
}

/* What lies within a storage may outlive what was in that. */
static int begins_its_storage(Stopwatch *self, PyObject *tensor)
{
    return (PyObject *)Py_TYPE(tensor) == self->tensor &&
           stopwatch_number_of(self, PyObject_CallMethodNoArgs(tensor, s_storage_offset)) == 0;
}

/* The memory of a negated view holds the other sign. */
static int is_negated(Stopwatch *self, PyObject *tensor)
{
    return !is_false(self, PyObject_CallMethodNoArgs(tensor, s_is_neg));
}

/* 0 where it is a tensor that is not read here. */
static int notes_learning_rate(Stopwatch *self, PyObject *optimizer)
{
    PyObject *groups = PyObject_GetAttr(optimizer, s_param_groups);
    PyObject *group = groups && PyList_Check(groups) && PyList_GET_SIZE(groups) ? PyList_GET_ITEM(groups, 0) : NULL;
    PyObject *rate = group && PyDict_Check(group) ? PyDict_GetItemWithError(group, s_lr) : NULL;
    double value = rate && (PyFloat_Check(rate) || PyLong_Check(rate)) ? PyFloat_AsDouble(rate) : NAN;
    Py_XINCREF(rate); /* torch may let other threads run */
    int is_tensor = rate && isnan(value) && (PyObject *)Py_TYPE(rate) == self->tensor;
    if (is_tensor && begins_its_storage(self, rate) && !is_negated(self, rate))
        read_first(self, rate, &value, 1);
    Py_XDECREF(rate);
    Py_XDECREF(groups);
    stopwatch_give_up(self);
    if (self->is_on)
        self->entry->learning_rate = self->learning_rate = value;
    return !is_tensor || !isnan(value);
}

/* Weak reference to one of the optimizer's parameters, or NULL. */
static PyObject *canary_of(Stopwatch *self, PyObject *optimizer)
{
    PyObject *id = PyLong_FromVoidPtr(optimizer);
    PyObject *canary = id && self->canaries ? PyDict_GetItemWithError(self->canaries, id) : NULL;
    Py_XDECREF(id);
    stopwatch_give_up(self);
    return canary && PyWeakref_CheckRef(canary) ? Py_NewRef(canary) : NULL;
}

/* Whether the gradient is finite that a bad one anywhere above would have reached. */
static int seems_fine(Stopwatch *self, PyObject *optimizer)
{
    PyObject *canary = canary_of(self, optimizer);
    if (canary == NULL)
        return 0;
    PyObject *parameter = PyObject_CallNoArgs(canary);
    Py_DECREF(canary);
    PyObject *gradient = parameter ? PyObject_GetAttr(parameter, s_grad) : NULL;
    Py_XDECREF(parameter);
    if (gradient == NULL)
        return stopwatch_give_up(self);
    double value;
    /* Zero may stand for nothing at all. */
    int is_fine = begins_its_storage(self, gradient) && read_first(self, gradient, &value, 0) && value != 0.0;
    Py_DECREF(gradient);
    return is_fine;
}

int stopwatch_knows_numbers(Stopwatch *self, PyObject *optimizer)
{
    if (!self->is_on || (uintptr_t)optimizer != self->optimizers[self->at - 1])
        return 0;
    /* The step's is that of its first optimizer; it is noted also where Python sees to the rest. */
    int knows_rate = !isnan(self->learning_rate) || notes_learning_rate(self, optimizer);
    if (!self->is_on || !knows_rate || !self->takes_numbers || self->is_due)
        return 0;
    if (self->gradient_norm == NULL || self->gradient_norm == Py_None) {
        int is_fine = seems_fine(self, optimizer);
        if (is_fine && self->is_on)
            stopwatch_lacks_norm(self);
        return is_fine;
    }
    double norm;
    PyObject *tensor = Py_NewRef(self->gradient_norm);
    int is_read = stopwatch_reads_scalar(self, tensor, &norm) && self->is_on;
    if (is_read) {
        stopwatch_adds_norm(self, norm);
        Py_XSETREF(self->gradient_norm, Py_NewRef(Py_None)); /* the next optimizer's gradients have another one */
    }
    Py_DECREF(tensor);
    return is_read;
}
