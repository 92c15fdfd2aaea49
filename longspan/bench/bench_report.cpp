#include "longspan/bench/bench_report.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "longspan/models/dtype_words.h"
#include "longspan/text/bars.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

int64_t num_tokens(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

const MethodMeasurement* undistributed(const AttentionBenchResult& result) {
  const auto& methods = result.methods;
  const bool there = !methods.empty() && methods.front().undistributed();
  return there ? &methods.front() : nullptr;
}

double tokens_per_second(const AttentionBenchResult& result, const MethodMeasurement& method) {
  return static_cast<double>(num_tokens(result.options.document_lengths)) / method.pass_median();
}

// "1.50", or "1.50 (1.25)" where the formula gives another number.
std::string sent_text(int64_t sent, int64_t formula) {
  if (sent == formula) return fmt::format("{:.2f}", static_cast<double>(sent) / kMiB);
  return fmt::format("{:.2f} ({:.2f})", static_cast<double>(sent) / kMiB,
                     static_cast<double>(formula) / kMiB);
}

constexpr const char* kLegend =
    R"(  forward, backward   milliseconds, median of the repeats
  speed               against undistributed attention
  load                largest rank over mean: time in the attention kernel (of the processor, or
                      the GPU) / attended pairs
  memory              MiB above the inputs in a forward and backward, of the rank that needs most;
                      in brackets without the output and the gradients
  sent                MiB that all ranks together send to others for one layer, forward and backward;
                      in brackets the formula's, where it differs
)";

}  // namespace

std::string describe(const AttentionBenchResult& result) {
  const AttentionBenchOptions& options = result.options;
  const ProblemShape& shape = options.shape;
  return fmt::format(
      "{}{} and {} of {}, {} in {}, {}{}, {} with {} each, on {}",
      shape.layer ? fmt::format("attention sublayer of width {}, ", shape.model_dim) : "",
      counted(shape.num_heads, "query head"), counted(shape.num_kv_heads, "kv head"),
      shape.head_dim, counted(num_tokens(options.document_lengths), "token"),
      counted(static_cast<int64_t>(options.document_lengths.size()), "document"),
      short_name_of(shape.dtype), shape.checkpointing ? ", checkpointing" : "",
      counted(result.num_ranks, "rank"), counted(result.threads, "thread"), result.device);
}

std::string bench_table(const AttentionBenchResult& result) {
  const MethodMeasurement* base = undistributed(result);
  std::string table = describe(result) + "\n\n";
  size_t width = 6;
  for (const MethodMeasurement& method : result.methods) {
    width = std::max(width, method.name.size());
  }
  const auto line = [&](const std::string& name, const auto&... columns) {
    table += fmt::format("{:<{}} {:>9} {:>9} {:>9} {:>6} {:>11} {:>17} {:>17} {:>17} {:>9} {:>9}\n",
                         name, width, columns...);
  };
  line("method", "forward", "backward", "tokens/s", "speed", "load", "memory", "sent forward",
       "sent backward", "error out", "gradients");
  bool differs = false;
  for (const MethodMeasurement& method : result.methods) {
    differs |= method.sent.forward != method.formula.forward ||
               method.sent.backward != method.formula.backward;
    line(method.name, fmt::format("{:.2f}", 1e3 * method.forward_median()),
         fmt::format("{:.2f}", 1e3 * method.backward_median()),
         fmt::format("{:.0f}", tokens_per_second(result, method)),
         base ? fmt::format("{:.3f}", base->pass_median() / method.pass_median()) : "",
         fmt::format("{:.2f} / {:.2f}", method.time_imbalance(), method.pair_imbalance()),
         fmt::format("{:.1f} ({:.1f})", static_cast<double>(method.largest_peak()) / kMiB,
                     static_cast<double>(method.largest_buffers()) / kMiB),
         sent_text(method.sent.forward, method.formula.forward),
         sent_text(method.sent.backward, method.formula.backward),
         fmt::format("{:.1e}", method.output_error),
         fmt::format("{:.1e}", method.largest_gradient_error()));
  }
  table += fmt::format(
      "\n{}  error               relative, against undistributed attention in fp64, "
      "{}\n",
      kLegend,
      result.checked_lengths == result.options.document_lengths
          ? "on the same row"
          : "on a shorter row of " + counted(num_tokens(result.checked_lengths), "token"));
  if (base) {
    table += fmt::format("Undistributed attention runs on rank 0 alone, with {}.\n",
                         counted(base->num_threads, "thread"));
  }
  table += differs ? "The bytes sent DIFFER from the formula where brackets show it.\n"
                   : "The bytes sent are those of the formula.\n";
  return table;
}

std::string bench_json(const AttentionBenchResult& result) {
  const AttentionBenchOptions& options = result.options;
  const MethodMeasurement* base = undistributed(result);
  nlohmann::ordered_json methods = nlohmann::ordered_json::array();
  for (const MethodMeasurement& method : result.methods) {
    std::vector<double> kernel_seconds, pairs;
    for (const KernelWork& work : method.kernel) {
      kernel_seconds.push_back(work.seconds);
      pairs.push_back(work.pairs);
    }
    nlohmann::ordered_json errors = {{"out", method.output_error}};
    const std::vector<std::string> names = gradient_names(options.shape);
    for (size_t i = 0; i < method.gradient_errors.size(); ++i) {
      errors[names[i]] = method.gradient_errors[i];
    }
    nlohmann::ordered_json entry = {
        {"name", method.name},
        {"mode", method.undistributed() ? "undistributed" : method.plan.method->name},
        {"ulysses_degree", method.plan.ulysses_size},
        {"ring_degree", method.plan.ring_size},
        {"window", method.plan.window_size},
        {"head_waves", method.plan.head_waves},
        {"threads_per_rank", method.num_threads},
        {"padded_tokens", method.num_padded_tokens},
        {"forward_seconds", method.forward_median()},
        {"backward_seconds", method.backward_median()},
        {"pass_seconds", method.pass_median()},
        {"tokens_per_second", tokens_per_second(result, method)},
        {"forward_seconds_of_repeats", method.forward_seconds},
        {"backward_seconds_of_repeats", method.backward_seconds},
        {"kernel_seconds_of_ranks", kernel_seconds},
        {"attended_pairs_of_ranks", pairs},
        {"load_by_kernel_time", method.time_imbalance()},
        {"load_by_pairs", method.pair_imbalance()},
        {"peak_bytes_of_ranks", method.peak_bytes},
        {"buffer_bytes_of_ranks", method.buffer_bytes},
        {"sent_bytes", {{"forward", method.sent.forward}, {"backward", method.sent.backward}}},
        {"formula_bytes",
         {{"forward", method.formula.forward}, {"backward", method.formula.backward}}},
        {"relative_errors", errors}};
    if (base) entry["speed_of_undistributed"] = base->pass_median() / method.pass_median();
    methods.push_back(std::move(entry));
  }
  const nlohmann::ordered_json document = {
      {"description", describe(result)},
      {"device", result.device},
      {"ranks", result.num_ranks},
      {"threads_per_rank", result.threads},
      {"heads", options.shape.num_heads},
      {"kv_heads", options.shape.num_kv_heads},
      {"head_dim", options.shape.head_dim},
      {"document_lengths", options.document_lengths},
      {"dtype", std::string(short_name_of(options.shape.dtype))},
      {"layer", options.shape.layer},
      {"model_dim", options.shape.layer ? options.shape.model_dim : 0},
      {"checkpointing", options.shape.checkpointing},
      {"repeats", options.repeats},
      {"errors_against", "undistributed attention in fp64"},
      {"checked_document_lengths", result.checked_lengths},
      {"methods", std::move(methods)}};
  return document.dump(1) + "\n";
}

void write_bench_picture(const std::string& png_path, const AttentionBenchResult& result) {
  BarPanel time{.title = "Time of a pass", .x_label = "ms", .parts = {{"forward"}, {"backward"}}};
  BarPanel sent{.title = "Sent by all ranks, one layer",
                .x_label = "MiB",
                .parts = {{"forward"}, {"backward"}},
                .mark_label = "formula"};
  BarPanel load{.title = "Load: largest rank over mean",
                .x_label = "time in the attention kernel",
                .parts = {BarPart{}},
                .mark_label = "attended pairs"};
  BarPanel memory{.title = "Peak memory of a rank",
                  .x_label = "MiB above the inputs",
                  .parts = {{"buffers"}, {"output and gradients"}}};
  std::vector<std::string> names;
  for (const MethodMeasurement& method : result.methods) {
    names.push_back(method.name);
    const double forward = 1e3 * method.forward_median();
    // The two parts add up to the median of the whole pass.
    const double pass = 1e3 * method.pass_median();
    time.parts[0].values.push_back(forward);
    time.parts[1].values.push_back(std::max(0.0, pass - forward));
    time.notes.push_back(fmt::format("{:.4g}", pass));
    const double sum = static_cast<double>(method.sent.forward + method.sent.backward) / kMiB;
    const double formula =
        static_cast<double>(method.formula.forward + method.formula.backward) / kMiB;
    sent.parts[0].values.push_back(static_cast<double>(method.sent.forward) / kMiB);
    sent.parts[1].values.push_back(static_cast<double>(method.sent.backward) / kMiB);
    sent.notes.push_back(sum > 0 ? fmt::format("{:.4g}", sum) : "0");
    sent.marks.push_back(formula);
    load.parts[0].values.push_back(method.time_imbalance());
    load.notes.push_back(fmt::format("{:.2f}", method.time_imbalance()));
    load.marks.push_back(method.pair_imbalance());
    const double buffers = static_cast<double>(method.largest_buffers()) / kMiB;
    const double peak = static_cast<double>(method.largest_peak()) / kMiB;
    memory.parts[0].values.push_back(buffers);
    memory.parts[1].values.push_back(std::max(0.0, peak - buffers));
    memory.notes.push_back(fmt::format("{:.4g}", peak));
  }
  const int height = 150 + 34 * static_cast<int>(std::max<size_t>(names.size(), 4));
  write_bars(png_path, describe(result), names, {time, sent, load, memory}, 1700, height);
}

}  // namespace longspan
