from kvasir import main

main()
