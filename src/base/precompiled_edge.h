// Precompiled for the libraries that talk to the outside: sockets, JSON, the command line
// (cmake/kvasir.cmake).
#pragma once

#include <CLI/CLI.hpp>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "base/precompiled.h"
