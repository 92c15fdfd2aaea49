// Data sets for tests, in a folder that is removed at the end of the test.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/data/dataset.h"
#include "longspan/registers/stage.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {

/// A dataset_dir.
class DatasetFolder {
 public:
  explicit DatasetFolder(const std::string& stage = "sft") {
    config_.data.dataset_dir = folder_.path;
    config_.data.dataset = "d";
    config_.method.stage = stage;
  }

  std::string path() const { return folder_.path; }
  /// Returns the file's path.
  std::string write(const std::string& name, const std::string& text) const {
    return folder_.write(name, text);
  }
  /// Writes dataset_info.json with one entry, d.
  void info(const std::string& entry) const {
    write("dataset_info.json", "{\"d\": " + entry + "}");
  }
  /// Returns a configuration of the stage, with dataset d.
  const Config& config() const { return config_; }
  std::vector<Conversation> rows() const {
    return read_conversations(config_.data, stage_of(config_.method), config_.optimization.seed,
                              "d");
  }
  /// Returns the error of reading the rows; empty if there is none.
  std::string complaint() const {
    try {
      rows();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

 private:
  testing::TemporaryFolder folder_;
  Config config_;
};

/// Returns "u=question;a=answer;", and "r=" with the rejected answer of a pair.
inline std::string flat(const Conversation& row) {
  std::string text;
  for (const Message& message : row.messages) {
    text += name_of(message.role).substr(0, 1) + "=" + message.content + ";";
  }
  return row.rejected ? text + "r=" + row.rejected->content + ";" : text;
}

inline std::vector<std::string> flat(const std::vector<Conversation>& rows) {
  std::vector<std::string> texts;
  for (const Conversation& row : rows) texts.push_back(flat(row));
  return texts;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

#define CHECK_SAYS(text, part) CHECK_MESSAGE(::longspan::has(text, part), (text))

}  // namespace longspan
