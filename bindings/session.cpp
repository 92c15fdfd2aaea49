// Operators of sessions: rows and steps.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "bindings/session_of_python.h"
#include "bindings/session_samples.h"
#include "longspan/base/user_error.h"
#include "longspan/comm/mesh.h"
#include "longspan/rows/batch.h"
#include "longspan/rows/picture.h"
#include "longspan/session/model_update.h"

namespace longspan {

const Row& RowOfPython::of(const SessionPointer& session) const {
  if (session_._unsafe_get_target() == session.get()) return row_;
  throw UserError(
      "a row is of another session, and a session takes rows of its own row(): make the row again");
}

namespace {

using Tensors = std::vector<at::Tensor>;
using Names = std::vector<std::string>;
using Numbers = std::vector<double>;
using LossParts = std::tuple<Tensors, bool>;

SessionPointer session_open(const std::string& file, const Names& overrides, int64_t listener,
                            int64_t port, bool has_pictures) {
  return for_python([&] {
    return c10::make_intrusive<SessionOfPython>(file, overrides, listener, port, has_pictures);
  });
}

void session_close(const SessionPointer& s, const std::string& why) { s->close(why); }

/// Returns the rank, the ranks, and the data-parallel groups.
std::vector<int64_t> session_place(const SessionPointer& s) {
  return s->call([](Session& session) -> std::vector<int64_t> {
    const Mesh& mesh = session.mesh();
    return {mesh.world.rank(), mesh.world.size(), mesh.data.size()};
  });
}

RowPointer session_row(const SessionPointer& s, const Tensors& ids, const Tensors& labels,
                       const std::vector<int64_t>& documents, const std::vector<int64_t>& desirable,
                       const Names& names, const Tensors& columns, const Names& files,
                       const Tensors& pixels, const std::vector<int64_t>& grids,
                       const std::vector<int64_t>& num_pictures) {
  // Not collective: a mistake leaves the session as it was.
  return for_python([&] {
    DrawnExamples drawn;
    std::vector<HeldPixels> held;
    for (Example& example : examples_of_python({ids, labels, documents, desirable, names, columns,
                                                files, pixels, grids, num_pictures},
                                               s->pictures(), held)) {
      drawn.examples.push_back(std::make_shared<const Example>(std::move(example)));
    }
    drawn.pattern = drawn.examples.at(0);
    return c10::make_intrusive<RowOfPython>(s, s->open().row(drawn), std::move(held));
  });
}

std::vector<Row> rows_of(const SessionPointer& s, const std::vector<RowPointer>& given) {
  std::vector<Row> rows;
  for (const RowPointer& row : given) rows.push_back(row->of(s));
  return rows;
}

std::tuple<double, int64_t, int64_t, int64_t> session_count(const SessionPointer& s,
                                                            const std::vector<RowPointer>& rows) {
  return s->call([&](Session& session) -> std::tuple<double, int64_t, int64_t, int64_t> {
    const BatchCounts counts = session.count(rows_of(s, rows));
    return {counts.weight, counts.num_tokens, counts.num_samples, counts.num_computed_tokens};
  });
}

double session_sum_over_groups(const SessionPointer& s, double value) {
  return s->call([&](Session& session) { return session.sum_over_groups(value); });
}

/// `weight`: empty: the rows' own.
LossParts session_forward_backward(const SessionPointer& s, const std::vector<RowPointer>& rows,
                                   std::optional<double> weight) {
  return s->call([&](Session& session) -> LossParts {
    if (weight && !(*weight >= 1 && std::isfinite(*weight) && *weight == std::floor(*weight))) {
      throw UserError(fmt::format(
          "weight is {}, and must be a whole number of at least 1, as of labels, pairs or answers: "
          "leave weight out for that of the rows, or scale the loss in a loss function",
          *weight));
    }
    const std::vector<Row> own = rows_of(s, rows);
    RowLosses losses = session.forward_backward(own, weight ? *weight : session.count(own).weight);
    return {std::move(losses.contributions), losses.replicated};
  });
}

LossParts session_forward_backward_loss(const SessionPointer& s,
                                        const std::vector<RowPointer>& rows, int64_t loss,
                                        bool reads_hidden_states, bool whole_row) {
  return s->call([&](Session& session) -> LossParts {
    RowLosses losses = s->forward_backward(
        session, rows_of(s, rows), reinterpret_cast<PythonLoss>(static_cast<intptr_t>(loss)),
        reads_hidden_states, whole_row);
    return {std::move(losses.contributions), losses.replicated};
  });
}

/// Returns log-probabilities or hidden states, places, names of columns, and the columns at these
/// places.
std::tuple<at::Tensor, at::Tensor, Names, Tensors> loss_input(const SessionPointer& s) {
  return for_python([&]() -> std::tuple<at::Tensor, at::Tensor, Names, Tensors> {
    const LossInput& input = s->input();
    Names names;
    Tensors columns;
    for (const auto& [name, column] : input.row.local.columns) {
      if (name == kFeatureColumn) continue;  // of pictures, not the caller's
      names.push_back(name);
      columns.push_back(column.values.index_select(0, input.places_L));
    }
    return {input.logprobs_L.defined() ? input.logprobs_L : input.hidden_LD, input.places_L, names,
            columns};
  });
}

at::Tensor loss_sum_over_row(const SessionPointer& s, const at::Tensor& x) {
  return for_python([&] { return s->input().sum_over_row(x); });
}

void loss_result(const SessionPointer& s, const at::Tensor& loss) {
  for_python([&] { s->take_loss(loss); });
}

/// Returns the loss, and 1 for each flag that some rank has set.
Numbers session_sum_up(const SessionPointer& s, const Tensors& contributions, bool replicated,
                       const Numbers& flags) {
  return s->call([&](Session& session) {
    const bool counts = !replicated || session.mesh().sequence.rank() == 0;
    const SumsOfStep sums =
        session.sum_up({.contributions = contributions,
                        .replicated = replicated,
                        .counted = std::vector<bool>(contributions.size(), counts)},
                       flags);
    Numbers result{sums.loss()};
    for (int64_t i = 0; i < std::ssize(flags); ++i) result.push_back(sums.flag(i) ? 1.0 : 0.0);
    return result;
  });
}

double session_reduce(const SessionPointer& s) {
  return s->call([](Session& session) { return session.reduce(); });
}

void session_clip(const SessionPointer& s, double norm, double max_norm) {
  s->call([&](Session& session) {
    if (!(norm >= 0 && std::isfinite(norm))) {
      throw UserError(fmt::format(
          "clip: norm is {}, and must be finite and at least 0: pass the result of reduce(), or "
          "drop() the gradients if that is not finite",
          norm));
    }
    if (!(max_norm > 0)) {
      throw UserError(fmt::format(
          "clip: max_norm is {}, and must be positive: to leave gradients as they are, do not clip",
          max_norm));
    }
    session.clip(norm, max_norm);
  });
}

void session_update(const SessionPointer& s, double learning_rate) {
  s->call([&](Session& session) {
    if (!(learning_rate >= 0 && std::isfinite(learning_rate))) {
      throw UserError(
          fmt::format("update: learning_rate is {}, and must be finite and at least 0: to leave "
                      "the parameters as they are, drop() the gradients",
                      learning_rate));
    }
    session.update(learning_rate);
  });
}

void session_drop(const SessionPointer& s) {
  s->call([](Session& session) { session.drop(); });
}

int64_t session_step(const SessionPointer& s) {
  return for_python([&] { return s->open().step(); });
}

void session_begin_step(const SessionPointer& s, int64_t step) {
  for_python([&] {
    if (step < 0) {
      throw UserError(
          fmt::format("step is {}, and must be at least 0: set the updates so far", step));
    }
    s->open().begin_step(step);
  });
}

/// Returns names and tensors of the trained parameters of this rank.
std::tuple<Names, Tensors> session_parameters(const SessionPointer& s) {
  return for_python([&] {
    std::tuple<Names, Tensors> result;
    for (const NamedTensor& parameter : s->open().updating().trained()) {
      std::get<0>(result).push_back(parameter.name);
      std::get<1>(result).push_back(parameter.tensor);
    }
    return result;
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.class_<SessionOfPython>("Session");
  library.class_<RowOfPython>("Row");
  const auto define = [&](const std::string& name, const std::string& arguments,
                          const std::string& results, auto* function) {
    const std::string self = "__torch__.torch.classes.longspan.Session s";
    library.def(fmt::format("{}({}{}) -> {}", name, self, arguments, results).c_str(), function);
  };
  const std::string row = "__torch__.torch.classes.longspan.Row";
  library.def(
      "session_open(str file, str[] overrides, int listener, int port, bool has_pictures) -> "
      "__torch__.torch.classes.longspan.Session",
      session_open);
  define("session_close", ", str why", "()", session_close);
  define("session_place", "", "int[]", session_place);
  define("session_row",
         ", Tensor[] ids, Tensor[] labels, int[] documents, int[] desirable, str[] names, "
         "Tensor[] columns, str[] files, Tensor[] pixels, int[] grids, int[] num_pictures",
         row, session_row);
  define("session_count", ", " + row + "[] rows", "(float, int, int, int)", session_count);
  define("session_sum_over_groups", ", float value", "float", session_sum_over_groups);
  define("session_forward_backward", ", " + row + "[] rows, float? weight", "(Tensor[], bool)",
         session_forward_backward);
  define("session_forward_backward_loss",
         ", " + row + "[] rows, int loss, bool reads_hidden_states, bool whole_row",
         "(Tensor[], bool)", session_forward_backward_loss);
  define("loss_input", "", "(Tensor, Tensor, str[], Tensor[])", loss_input);
  define("loss_sum_over_row", ", Tensor x", "Tensor", loss_sum_over_row);
  define("loss_result", ", Tensor loss", "()", loss_result);
  define("session_sum_up", ", Tensor[] contributions, bool replicated, float[] flags", "float[]",
         session_sum_up);
  define("session_reduce", "", "float", session_reduce);
  define("session_clip", ", float norm, float max_norm", "()", session_clip);
  define("session_update", ", float learning_rate", "()", session_update);
  define("session_drop", "", "()", session_drop);
  define("session_step", "", "int", session_step);
  define("session_begin_step", ", int step", "()", session_begin_step);
  define("session_parameters", "", "(str[], Tensor[])", session_parameters);
}

}  // namespace longspan
