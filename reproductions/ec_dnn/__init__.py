"""Sun and Liu, *EC-DNN: A new method for parallel training of deep neural networks*."""
