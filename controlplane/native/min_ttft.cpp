// The compiled twin of routing/min-ttft@1 (policy/routing.py), for replay.
//
// evaluate(weights, inputs) answers what the Python evaluator answers, already encoded: the bytes
// of the choice, the reason, the tie-break and the bytes of all alternatives. It answers None for
// any inputs outside its domain, which the caller then gives to the Python evaluator: every
// quantity a plain integer from 0 to 2^62 - 1 (tiers from -1), no sum or product beyond 2^63 - 1,
// columns of equal length. From call to call it keeps, of each field, the tuple it read last and
// its values: most columns are the same object in one decision after another, and a tuple of
// integers never changes.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace {

// A column in room that somebody else keeps.
struct Column {
  int64_t* values;
  size_t length;

  size_t size() const { return length; }
  int64_t& operator[](size_t place) const { return values[place]; }
  int64_t* begin() const { return values; }
  int64_t* end() const { return values + length; }
};

class Room {  // for columns, asked for once
 public:
  explicit Room(size_t values)
      : values_(new int64_t[values]), next_(values_.get()), left_(values) {}

  Column column(size_t length) {
    if (length > left_) throw std::bad_alloc();
    left_ -= length;
    const Column made{next_, length};
    next_ += length;
    return made;
  }

 private:
  std::unique_ptr<int64_t[]> values_;
  int64_t* next_;
  size_t left_;
};

constexpr size_t kWorkerColumns = 4, kWayColumns = 5;

// Values of RouteReason and Tier.
constexpr int64_t kOffline = 1, kModelNotLoaded = 2, kContextExceeded = 3, kLonger = 4,
                  kTooFewPages = 5, kExcluded = 6, kLowestTtft = 16, kNoWorker = 17;
constexpr int64_t kDevice = 0;
constexpr int64_t kQuantityMax = (int64_t{1} << 62) - 1;

// Fields of RouteInputs in the order in which they are read.
enum Field {
  kPromptTokens, kMaxNewTokens, kPageTokens, kExcludedWorkers, kWorkers, kWorkerEpochs, kOnline,
  kModelLoaded, kContextTokens, kVerifyRows, kAvailablePages, kQueueNs, kPrefillNsPerToken,
  kFirstTokenNs, kStarts, kTiers, kTokens, kLoadNs, kRestoreNs, kFields
};
const char* const kNames[kFields] = {
    "prompt_tokens", "max_new_tokens", "page_tokens", "excluded", "workers", "worker_epochs",
    "online", "model_loaded", "context_tokens", "verify_rows", "available_pages", "queue_ns",
    "prefill_ns_per_token", "first_token_ns", "starts", "tiers", "tokens", "load_ns",
    "restore_ns"};
PyObject* field_names[kFields];  // interned once, when the module is made

struct Kept {
  PyObject* tuple = nullptr;  // held, so that no other object can take its place in memory
  std::vector<int64_t> values;
};
Kept kept[kFields];  // guarded by the interpreter's lock

// Thrown where the inputs leave the domain.
struct Outside {};

struct Owned {  // a reference that is given back
  PyObject* object;
  explicit Owned(PyObject* taken) : object(taken) {
    if (object == nullptr) throw Outside{};
  }
  ~Owned() { Py_XDECREF(object); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
};

int64_t integer(PyObject* object, int64_t least) {
  if (!PyLong_CheckExact(object)) throw Outside{};  // a bool encodes otherwise
  const auto* number = reinterpret_cast<PyLongObject*>(object);
#if PY_VERSION_HEX >= 0x030C0000
  if (PyUnstable_Long_IsCompact(number)) {
    const int64_t value = PyUnstable_Long_CompactValue(number);
    if (value < least) throw Outside{};
    return value;
  }
#else
  if (Py_SIZE(number) == 1) return number->ob_digit[0];  // positive, and below 2^30
#endif
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow != 0 || value < least || value > kQuantityMax) throw Outside{};
  return value;
}

int64_t sum(int64_t a, int64_t b) {
  int64_t total;
  if (__builtin_add_overflow(a, b, &total)) throw Outside{};
  return total;
}

int64_t product(int64_t a, int64_t b) {
  int64_t total;
  if (__builtin_mul_overflow(a, b, &total)) throw Outside{};
  return total;
}

PyObject* tuple_of(const Owned& field, Py_ssize_t length) {
  if (!PyTuple_CheckExact(field.object)) throw Outside{};
  if (length >= 0 && PyTuple_GET_SIZE(field.object) != length) throw Outside{};
  return field.object;
}

int64_t number(PyObject* inputs, Field field) {
  return integer(Owned(PyObject_GetAttr(inputs, field_names[field])).object, 0);
}

template <typename Read>
Column column_of(PyObject* inputs, Field field, Py_ssize_t length, Read&& read) {
  const Owned held(PyObject_GetAttr(inputs, field_names[field]));
  PyObject* values = tuple_of(held, length);
  Kept& known = kept[field];
  if (known.tuple != values) {
    Py_CLEAR(known.tuple);
    known.values.resize(length);
    for (Py_ssize_t place = 0; place < length; ++place) {
      known.values[place] = read(PyTuple_GET_ITEM(values, place));
    }
    Py_INCREF(values);
    known.tuple = values;
  }
  return Column{known.values.data(), static_cast<size_t>(length)};
}

Column column(PyObject* inputs, Field field, Py_ssize_t length, int64_t least = 0) {
  return column_of(inputs, field, length,
                   [least](PyObject* value) { return integer(value, least); });
}

Column flags(PyObject* inputs, Field field, Py_ssize_t length) {
  return column_of(inputs, field, length, [](PyObject* value) -> int64_t {
    if (value != Py_True && value != Py_False) throw Outside{};
    return value == Py_True;
  });
}

// ---------------------------------------------------------------- msgpack

constexpr size_t kIntegerBytesMax = 9, kHeadBytesMax = 5;

class Packed {  // written from front to back into room that was asked for whole
 public:
  explicit Packed(size_t bytes_max) : room_(new char[bytes_max]), end_(room_.get()) {}

  const char* data() const { return room_.get(); }
  Py_ssize_t size() const { return end_ - room_.get(); }

  void array_head(size_t length) {
    if (length < 16) {
      *end_++ = static_cast<char>(0x90 | length);
    } else if (length < 0x10000) {
      tagged<uint16_t>('\xdc', length);
    } else {
      tagged<uint32_t>('\xdd', length);
    }
  }

  void integer(int64_t value) {  // from -32: below that no column goes
    if (value < 0x80) {
      *end_++ = static_cast<char>(value);
    } else if (value < 0x100) {
      tagged<uint8_t>('\xcc', value);
    } else if (value < 0x10000) {
      tagged<uint16_t>('\xcd', value);
    } else if (value < int64_t{1} << 32) {
      tagged<uint32_t>('\xce', value);
    } else {
      tagged<uint64_t>('\xcf', value);
    }
  }

  void column(const Column& values) {
    array_head(values.size());
    for (const int64_t value : values) integer(value);
  }

  void text(const char* data, size_t bytes) {
    if (bytes < 32) {
      *end_++ = static_cast<char>(0xa0 | bytes);
    } else if (bytes < 0x100) {
      tagged<uint8_t>('\xd9', bytes);
    } else if (bytes < 0x10000) {
      tagged<uint16_t>('\xda', bytes);
    } else {
      tagged<uint32_t>('\xdb', bytes);
    }
    std::memcpy(end_, data, bytes);
    end_ += bytes;
  }

 private:
  template <typename Unsigned>
  void tagged(char tag, uint64_t value) {
    *end_++ = tag;
    for (int shift = 8 * (static_cast<int>(sizeof(Unsigned)) - 1); shift >= 0; shift -= 8) {
      *end_++ = static_cast<char>(value >> shift);
    }
  }

  std::unique_ptr<char[]> room_;
  char* end_;
};

// ---------------------------------------------------------------- the evaluator

// Pages that a way to start takes beyond those that lie on its worker's device.
Column required_pages(Room& room, int64_t sequence_tokens, int64_t page_tokens,
                      const Column& verify_rows, const Column& starts, const Column& tiers,
                      const Column& tokens) {
  const Column pages = room.column(verify_rows.size()), resident = room.column(verify_rows.size()),
               required = room.column(starts.size());
  std::fill(resident.begin(), resident.end(), 0);
  for (size_t place = 0; place < pages.size(); ++place) {
    const int64_t rows = sum(sequence_tokens, verify_rows[place]);
    pages[place] = rows / page_tokens + (rows % page_tokens != 0);
  }
  for (size_t way = 0; way < starts.size(); ++way) {
    int64_t& here = resident[starts[way]];
    if (tiers[way] == kDevice) here = std::max(here, tokens[way]);
  }
  for (size_t way = 0; way < starts.size(); ++way) {
    const int64_t held = std::min(resident[starts[way]], tokens[way]);
    required[way] = std::max<int64_t>(pages[starts[way]] - held / page_tokens, 0);
  }
  return required;
}

// The place of the best way and how many criteria tied before it was settled; -1: there is none.
std::pair<int64_t, int64_t> best_way(const Column& starts, const Column& tiers,
                                     const Column& tokens, const Column& reasons,
                                     const Column& ttft_ns) {
  int64_t best = -1, tie_break = 0;
  for (size_t way = 0; way < starts.size(); ++way) {
    if (reasons[way] == 0 && (best < 0 || ttft_ns[way] < ttft_ns[best])) best = way;
  }
  if (best < 0) return {-1, 0};
  std::vector<size_t> left;
  for (size_t way = 0; way < starts.size(); ++way) {
    if (reasons[way] == 0 && ttft_ns[way] == ttft_ns[best]) left.push_back(way);
  }
  const auto keep = [&](auto&& wanted) {
    left.erase(std::remove_if(left.begin(), left.end(), [&](size_t way) { return !wanted(way); }),
               left.end());
  };
  if (left.size() > 1) {
    tie_break = 1;
    int64_t most = -1;
    for (const size_t way : left) most = std::max(most, tokens[way]);
    keep([&](size_t way) { return tokens[way] == most; });
  }
  if (left.size() > 1) {
    tie_break = 2;
    const int64_t first = starts[left[0]];
    keep([&](size_t way) { return starts[way] == first; });
  }
  if (left.size() > 1) {
    tie_break = 3;
    std::stable_sort(left.begin(), left.end(),
                     [&](size_t a, size_t b) { return tiers[a] < tiers[b]; });
  }
  return {static_cast<int64_t>(left[0]), tie_break};
}

// The answer. Without a worker: nobody can take the request.
PyObject* answer(PyObject* worker, int64_t epoch, int64_t tier, int64_t tokens, int64_t ttft_ns,
                 int64_t reason, int64_t tie_break, const Packed& alternatives) {
  Py_ssize_t bytes = 0;
  const char* name = worker == nullptr ? "" : PyUnicode_AsUTF8AndSize(worker, &bytes);
  if (name == nullptr) throw Outside{};
  Packed choice(kHeadBytesMax + kHeadBytesMax + bytes + 4 * kIntegerBytesMax);
  choice.array_head(5);
  choice.text(name, bytes);
  for (const int64_t value : {epoch, tier, tokens, ttft_ns}) choice.integer(value);
  return Py_BuildValue("(y#LLy#)", choice.data(), choice.size(), static_cast<long long>(reason),
                       static_cast<long long>(tie_break), alternatives.data(),
                       alternatives.size());
}

PyObject* nobody(const Packed& alternatives) {
  return answer(nullptr, 0, -1, 0, 0, kNoWorker, 0, alternatives);
}

PyObject* route(PyObject* inputs) {
  const Owned starts_field(PyObject_GetAttr(inputs, field_names[kStarts]));
  const Owned workers_field(PyObject_GetAttr(inputs, field_names[kWorkers]));
  const Owned excluded_field(PyObject_GetAttr(inputs, field_names[kExcludedWorkers]));
  PyObject* workers = tuple_of(workers_field, -1);
  PyObject* excluded = tuple_of(excluded_field, -1);
  const Py_ssize_t ways = PyTuple_GET_SIZE(tuple_of(starts_field, -1));
  const Py_ssize_t count = PyTuple_GET_SIZE(workers);
  if (ways == 0) {
    Packed none(kHeadBytesMax);
    none.array_head(0);
    return nobody(none);
  }

  const int64_t prompt_tokens = number(inputs, kPromptTokens);
  const int64_t sequence_tokens = sum(prompt_tokens, number(inputs, kMaxNewTokens));
  const int64_t page_tokens = number(inputs, kPageTokens);
  if (page_tokens == 0) throw Outside{};
  Room room(kWorkerColumns * static_cast<size_t>(count) + kWayColumns * static_cast<size_t>(ways));
  const Column epochs = column(inputs, kWorkerEpochs, count);
  const Column online = flags(inputs, kOnline, count);
  const Column loaded = flags(inputs, kModelLoaded, count);
  const Column context_tokens = column(inputs, kContextTokens, count);
  const Column verify_rows = column(inputs, kVerifyRows, count);
  const Column available = column(inputs, kAvailablePages, count);
  const Column queue_ns = column(inputs, kQueueNs, count);
  const Column per_token_ns = column(inputs, kPrefillNsPerToken, count);
  const Column first_token_ns = column(inputs, kFirstTokenNs, count);
  const Column starts = column(inputs, kStarts, ways);
  const Column tiers = column(inputs, kTiers, ways, -1);
  const Column tokens = column(inputs, kTokens, ways);
  const Column load_ns = column(inputs, kLoadNs, ways);
  const Column restore_ns = column(inputs, kRestoreNs, ways);
  for (const int64_t place : starts) {
    if (place >= count) throw Outside{};
  }

  // Per worker: 0, or why it can take no way; then, only for want of another reason, that it is
  // excluded.
  const Column closed = room.column(count), declined = room.column(count);
  for (Py_ssize_t place = 0; place < count; ++place) {
    closed[place] = !online[place]                             ? kOffline
                    : !loaded[place]                           ? kModelNotLoaded
                    : sequence_tokens > context_tokens[place] ? kContextExceeded
                                                               : 0;
    declined[place] = 0;
    if (PyTuple_GET_SIZE(excluded) > 0) {
      const int found = PySequence_Contains(excluded, PyTuple_GET_ITEM(workers, place));
      if (found < 0) throw Outside{};
      declined[place] = found ? kExcluded : 0;
    }
  }
  const int64_t prompt_rows = prompt_tokens - 1;
  const Column required =
      required_pages(room, sequence_tokens, page_tokens, verify_rows, starts, tiers, tokens);
  const Column reasons = room.column(ways), wait_ns = room.column(ways),
               prefill_ns = room.column(ways), ttft_ns = room.column(ways);
  for (Py_ssize_t way = 0; way < ways; ++way) {
    const int64_t place = starts[way];
    reasons[way] = closed[place]                       ? closed[place]
                   : tokens[way] > prompt_rows         ? kLonger
                   : required[way] > available[place] ? kTooFewPages
                                                       : declined[place];
    wait_ns[way] = std::max(queue_ns[place], load_ns[way]);
    prefill_ns[way] =
        product(std::max<int64_t>(prompt_rows - tokens[way], 0), per_token_ns[place]);
    ttft_ns[way] =
        sum(sum(sum(wait_ns[way], first_token_ns[place]), restore_ns[way]), prefill_ns[way]);
  }

  const std::initializer_list<const Column*> terms = {
      &starts, &tiers, &tokens, &reasons, &required, &wait_ns, &restore_ns, &prefill_ns, &ttft_ns};
  Packed alternatives(kHeadBytesMax +
                      terms.size() * (kHeadBytesMax + kIntegerBytesMax * static_cast<size_t>(ways)));
  alternatives.array_head(terms.size());
  for (const Column* term : terms) alternatives.column(*term);
  const auto [best, tie_break] = best_way(starts, tiers, tokens, reasons, ttft_ns);
  if (best < 0) return nobody(alternatives);
  const int64_t place = starts[best];
  return answer(PyTuple_GET_ITEM(workers, place), epochs[place], tiers[best], tokens[best],
                ttft_ns[best], kLowestTtft, tie_break, alternatives);
}

PyObject* evaluate(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "evaluate takes weights and inputs");
    return nullptr;
  }
  try {
    return route(arguments[1]);
  } catch (const Outside&) {
    PyErr_Clear();
    Py_RETURN_NONE;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyMethodDef methods[] = {
    {"evaluate", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(evaluate)),
     METH_FASTCALL, "(weights, inputs) -> (choice, reason, tie_break, alternatives), or None."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "min_ttft", "The compiled twin of routing/min-ttft@1.", -1, methods,
    nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_min_ttft() {
  for (int field = 0; field < kFields; ++field) {
    field_names[field] = PyUnicode_InternFromString(kNames[field]);
    if (field_names[field] == nullptr) return nullptr;
  }
  return PyModule_Create(&module);
}
