/* Each frame of Python is evaluated through a C function of its own (PEP 523), so that callgrind, which sees C functions
 * alone, counts Python's functions apart. Built and loaded by `scripts/bench budget`, and by nothing else. */
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_frame.h>

#define MANY 4000
#define EACH_10(each, n) each(n##0) each(n##1) each(n##2) each(n##3) each(n##4) each(n##5) each(n##6) each(n##7) each(n##8) each(n##9)
#define EACH_100(each, n) \
    EACH_10(each, n##0) EACH_10(each, n##1) EACH_10(each, n##2) EACH_10(each, n##3) EACH_10(each, n##4) \
    EACH_10(each, n##5) EACH_10(each, n##6) EACH_10(each, n##7) EACH_10(each, n##8) EACH_10(each, n##9)
#define EACH_1000(each, n) \
    EACH_100(each, n##0) EACH_100(each, n##1) EACH_100(each, n##2) EACH_100(each, n##3) EACH_100(each, n##4) \
    EACH_100(each, n##5) EACH_100(each, n##6) EACH_100(each, n##7) EACH_100(each, n##8) EACH_100(each, n##9)
#define EACH(each) EACH_1000(each, 0) EACH_1000(each, 1) EACH_1000(each, 2) EACH_1000(each, 3)

typedef PyObject *(*Evaluate)(PyThreadState *, struct _PyInterpreterFrame *, int);

#define DEFINE(n) \
    PyObject *counted_frame_##n(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throws) { \
        return _PyEval_EvalFrameDefault(thread, frame, throws); \
    }
EACH(DEFINE)

#define LISTED(n) counted_frame_##n,
static const Evaluate functions[MANY] = {EACH(LISTED)};

static Py_ssize_t place;      /* of a code object's number, plus one */
static PyObject *number_of;   /* what gives a code object its number; 0 is all that are too many */
static int numbering;

static PyObject *evaluate(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throws) {
    void *kept = NULL;
    if (numbering) return _PyEval_EvalFrameDefault(thread, frame, throws);
    if (_PyCode_GetExtra((PyObject *)frame->f_code, place, &kept) < 0) PyErr_Clear();
    if (kept == NULL) {
        PyObject *type, *value, *trace, *number;
        long found = 0;
        PyErr_Fetch(&type, &value, &trace);
        numbering = 1;
        number = PyObject_CallOneArg(number_of, (PyObject *)frame->f_code);
        numbering = 0;
        if (number != NULL) found = PyLong_AsLong(number);
        Py_XDECREF(number);
        if (found < 0 || found >= MANY) found = 0;
        PyErr_Clear();
        kept = (void *)(found + 1);
        _PyCode_SetExtra((PyObject *)frame->f_code, place, kept);
        PyErr_Restore(type, value, trace);
    }
    return functions[(Py_ssize_t)kept - 1](thread, frame, throws);
}

static PyObject *install(PyObject *module, PyObject *callable) {
    place = _PyEval_RequestCodeExtraIndex(NULL);
    Py_INCREF(callable);
    number_of = callable;
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"install", install, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "counted_frames", NULL, -1, methods};
PyMODINIT_FUNC PyInit_counted_frames(void) { return PyModule_Create(&definition); }
