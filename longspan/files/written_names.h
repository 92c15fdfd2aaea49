// Names of the files that the program writes into a folder of a model, an adapter or a checkpoint.
// Any other file belongs to someone else. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Tokenizer, chat template and generation settings, which are copied from the base model.
const std::vector<std::string>& tokenizer_file_names();

/// Files of an adapter.
const std::vector<std::string>& adapter_file_names();
/// Configuration and weights of a model, an adapter and a value head, without numbered weight
/// files.
const std::vector<std::string>& model_file_names();

/// Whether this version of the program or an older version writes a file of this path into the
/// folder of a model, an adapter or a checkpoint, or leaves such a file half-written
/// (left_temporary.h).
bool is_written_name(const std::string& name);

/// Whether the name is like ".nfs0123456789abcdef00000001". A network disk gives such a name to a
/// removed file that a process still holds open, and removes the file when it is closed.
bool is_held_name(const std::string& file_name);

/// Whether the folder holds any file, at any depth, except removed files that are still open. True
/// where the folder cannot be read.
bool holds_files(const std::string& folder);

/// Whether the name is a plain path below a folder: relative, without "..", "." or empty parts.
bool is_name_below(const std::string& name);

/// Looks for a foreign entry of the folder, and returns its path. An entry is a file, link, pipe or
/// folder. An entry is foreign if it is not in the folder's table of checksums and its name is not
/// a written name (is_written_name). Removed files that are still open (is_held_name) do not count.
/// Returns "itself" where `folder` is a link or a file or cannot be read, and "" where the program
/// has written all entries or the folder is missing.
std::string foreign_entry(const std::string& folder);

/// Throws UserError, with the message that the folder is in the way, unless foreign_entry() is
/// empty.
void require_own_folder(const std::string& folder);

/// Removes the folder after require_own_folder(). No-op where the folder is missing. Throws
/// UserError where the folder cannot be removed. Leaves a folder that holds only removed files that
/// are still open (is_held_name).
void remove_own_folder(const std::string& folder);

}  // namespace longspan
