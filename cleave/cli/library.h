#pragma once
#include <string>

namespace cleave::cli {

/// Loads libcleave, which loads libtorch, once, from the program's folder or the install's library
/// folder, and finds an extern "C" function in it. Throws Error(kIo) with the paths tried.
void* library_symbol(const char* name);

/// library_symbol with the function's type:
/// library_function<decltype(cleave_train)>("cleave_train").
template <class Function>
Function* library_function(const char* name) {
  return reinterpret_cast<Function*>(library_symbol(name));
}

/// Whether library_symbol would find it; if not, sets `why` to the reason.
bool has_library_symbol(const char* name, std::string* why);

}  // namespace cleave::cli
