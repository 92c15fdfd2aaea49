// Examples of streamed data sets, encoded ahead of their use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/data/example_encoder.h"
#include "longspan/data/handed_over.h"
#include "longspan/data/streamed_rows.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

/// A place between two examples of a stream. Rows are encoded in windows, since packing needs
/// several rows.
struct StreamPlace {
  int64_t epoch = 0;
  int64_t row = 0;      // of the epoch: the first of the window
  int64_t example = 0;  // of the window

  std::string text() const;
  /// Throws UserError if the text is none.
  static StreamPlace from(const std::string& text);
};

/// All that decides the examples of a stream.
struct StreamJob {
  DataSettings config;
  const Stage& stage;
  const Tokenizer& tokenizer;
  LocalTime template_time;  // time of the run
  int64_t vocab_size;
  int64_t seed;
  bool shuffles;
  /// Null: the model takes no pictures. Otherwise every example has the columns of pictures.
  const PictureEncoding* pictures = nullptr;
};

/// The examples of all epochs, one after the other, without an end. A thread reads and encodes
/// ahead; memory holds the buffer of buffer_size rows and some windows.
class StreamedExamples {
 public:
  /// `job` must outlive this object. The first example is the one after `from`, also in another
  /// process: the rows before are read and not encoded. Throws UserError.
  StreamedExamples(const StreamJob& job, const StreamPlace& from);

  struct Drawn {
    Example example;
    StreamPlace after;
  };
  /// Waits for the next example. Throws UserError: bad rows, files that cannot be read, an epoch
  /// without an example.
  Drawn next();

  /// Returns lines on the rows of the first epoch so far: cut and skipped rows, notes on data sets.
  const std::vector<std::string>& report() const { return window_.report; }

 private:
  struct Window {
    StreamPlace begin;
    std::vector<Example> examples;
    std::vector<std::string> report;
  };
  class Encoder;

  Window window_;
  int64_t at_ = 0, skipped_ = 0;  // skipped_: examples of the first window that were used before
  HandedOver<Window> windows_;
};

}  // namespace longspan
